"""Conversations to fine-tune a language model on: read from JSONL and Parquet files, and copied."""
