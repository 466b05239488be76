"""Derivatives: rules where torch has none or wrong ones, BatchNorm, and calling a model as a pure function."""
