"""Pictures of the page beyond the small copies that a project holds."""
