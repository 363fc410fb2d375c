"""Read and analyse traces of torch.profiler. Needs numpy and msgspec; no other room imports them."""
