"""Find hangs: whether a job stands still, who keeps it, and why."""
