"""What is computed from the columns of one trace: a file a table."""
