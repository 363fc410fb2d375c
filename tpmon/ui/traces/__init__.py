"""The screen of traces and memory snapshots."""
