"""Validation and test labels that are doubted by models that have not learnt them."""
