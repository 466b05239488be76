"""The training set as instances with ids, their batches, and repeatable random numbers."""
