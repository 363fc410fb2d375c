"""The rules: each suspects or clears one cause from the figures of a Scene. Pure."""
