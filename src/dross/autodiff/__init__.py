"""Derivatives: rules where torch's are missing or wrong, and a model as a pure function."""
