"""The screen. The only room that knows textual and rich, colours and columns."""
