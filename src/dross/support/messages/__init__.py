"""Parts of messages: what is missing and how to install it, and what an option is called."""
