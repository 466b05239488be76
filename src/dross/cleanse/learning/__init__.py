"""Training models again and again, and what they say of each instance: scores, doubts, reasons."""
