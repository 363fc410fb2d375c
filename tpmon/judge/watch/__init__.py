"""What is remembered of a job beyond the Window: how long each rank has stood where it is."""
