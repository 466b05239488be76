"""Derivatives: rules where torch has none or wrong ones, and a model as a pure function."""
