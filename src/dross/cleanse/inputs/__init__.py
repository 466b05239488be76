"""Reading a data set of any kind: tables, pictures, texts."""
