"""Read a data set of any kind (a table, pictures, texts, a Python function) into tensors."""
