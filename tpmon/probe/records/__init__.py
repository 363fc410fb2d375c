"""Read what the job itself recorded of its collectives."""
