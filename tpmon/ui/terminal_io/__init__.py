"""The terminal itself: keys in, pictures out, signals, clipboard, editor."""
