"""Recordings: whole Frames of one job in one file, read back, and judged again."""
