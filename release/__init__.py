"""What makes the files that are handed out: the one file tpmon.pyz, completions of shells, manual pages."""
