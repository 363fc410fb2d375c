"""A file a command: what it does with the packages below. The only code besides report that prints."""
