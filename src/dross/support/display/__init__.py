"""What results look like in a notebook: small tables, plots, and a progress bar."""
