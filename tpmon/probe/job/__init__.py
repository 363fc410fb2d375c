"""Find a job around a PID, tell the part of each process, and follow its members."""
