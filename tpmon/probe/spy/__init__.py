"""Read Python stacks with py-spy: slices, samples and dumps."""
