"""What single commands bring: captures, traces, snapshots, permissions, records."""
