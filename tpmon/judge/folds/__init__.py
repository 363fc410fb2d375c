"""Fold the stacks of a job, and say of one dump who waits for whom."""
