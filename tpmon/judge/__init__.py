"""What the readings mean: phases, causes, the verdict and what to do. Pure; knows every threshold."""
