"""Instances that are in the data twice, the same or nearly, and that are in two parts at once."""
