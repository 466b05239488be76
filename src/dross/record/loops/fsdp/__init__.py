"""A loop under torch's fully_shard (FSDP2), recorded as one tape of shards."""
