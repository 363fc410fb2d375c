"""Tests of tpmon; a package so that tests/frames.py can be imported from every folder."""
