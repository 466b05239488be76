"""What makes the site out of the repository: hooks of MkDocs, generated pages."""
