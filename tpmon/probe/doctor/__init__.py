"""Find out what may be read of a job, why not, and what would change it."""
