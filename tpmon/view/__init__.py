"""Describe results for eyes, once, for the screen, the text reports and CSV. Pure."""
