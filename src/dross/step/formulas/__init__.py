"""Optimizers as pure functions of one parameter: those of packages, and the user's own."""
