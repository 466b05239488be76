"""Tapes whose states are in shards: a file per rank, read by any number of ranks."""
