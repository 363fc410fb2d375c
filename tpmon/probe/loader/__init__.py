"""Read the queues of DataLoaders from outside."""
