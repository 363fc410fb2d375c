"""Read the GPUs: the NVML child, its readings and bounds, and which cards the job uses."""
