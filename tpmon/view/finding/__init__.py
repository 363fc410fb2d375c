"""A verdict as lines: of one job, and of all nodes of a fleet."""
