"""Training models again and again, and what they find about each instance: scores and reasons."""
