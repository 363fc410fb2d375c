"""Pictures of the screen as text, and the Frames that they are painted from."""
