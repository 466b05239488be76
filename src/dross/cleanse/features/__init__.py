"""Features: what a pretrained model, or the user's own, makes of pictures and texts."""
