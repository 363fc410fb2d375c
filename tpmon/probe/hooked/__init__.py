"""Read the page of the hook in a training process."""
