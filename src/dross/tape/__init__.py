"""What a run leaves on disk: reading, writing, and what is kept."""
