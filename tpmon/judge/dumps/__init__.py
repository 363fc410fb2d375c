"""Join the looks of a dump, and describe what its threads and collectives wait for. Pure."""
