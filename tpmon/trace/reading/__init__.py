"""Read trace files into columns, and write slices of them."""
