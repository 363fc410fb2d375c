"""Commands of many nodes: the one that a person types, and the one that it starts on each node."""
