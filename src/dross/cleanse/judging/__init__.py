"""What a verdict is made of: edits as models learn them, and models of the user's own."""
