"""What the operating system, the driver and the target tell. Reads; never judges, never draws."""
