"""How sure a single suggestion is, and how far independent runs agree."""
