"""Condense the Window into the figures that rules ask for. Pure."""
