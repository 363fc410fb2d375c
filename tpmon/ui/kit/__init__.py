"""The parts of every screen: canvas, ink, keys, shell. Knows no job."""
