"""Plans for what to remove and what to relabel: which there are, and which is the best."""
