"""The recommended plan on the page."""
