"""What a `Recorder` is made of: what it watches in a loop that belongs to the user."""
