"""Many nodes, one verdict: agents over the user's own launcher, their lines and states, one report."""
