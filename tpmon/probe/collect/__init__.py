"""Read everything once a second and close it into one Frame."""
