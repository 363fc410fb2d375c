"""Fold the stacks of a dump into groups, describe them, and find the outlier. Pure."""
