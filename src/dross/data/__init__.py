"""The training set as instances with ids, batches of them, and random numbers to draw again."""
