"""Data that are given from Python: arrays, tensors, frames, sparse matrices, lists of texts."""
