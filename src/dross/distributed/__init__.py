"""States in shards: a rank holds its part of each parameter, and gathers what it needs."""
