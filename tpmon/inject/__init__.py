"""The hook into a running training that has none: what may be written there, and what is refused."""
