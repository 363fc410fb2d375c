"""Many nodes as words and as glyphs: for text and for the screen of a fleet."""
