"""Text instead of a screen: once, plain, tables. The only room besides cli that prints."""
