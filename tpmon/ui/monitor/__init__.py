"""The live screen of a job."""
