"""The screen of a fleet: one verdict and a map of all nodes; enter opens the live screen of one of them."""
