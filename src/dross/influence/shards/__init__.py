"""Queries of a run of which each rank holds a shard."""
