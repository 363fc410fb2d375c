"""Classify stack samples: phases, whose code it is, and profiles of the main threads. Pure."""
