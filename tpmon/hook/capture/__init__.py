"""Record a bounded window of steps inside the training process."""
