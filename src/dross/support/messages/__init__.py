"""Parts of messages: missing packages, the names of options, and numbers of things."""
