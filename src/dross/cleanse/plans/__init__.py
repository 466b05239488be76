"""Plans of what to remove and what to relabel: which there are, and which is the best."""
