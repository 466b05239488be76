"""The list of validation labels to check first, on the page."""
