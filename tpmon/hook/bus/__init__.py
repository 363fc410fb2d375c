"""The two pages through which the hook and tpmon talk."""
