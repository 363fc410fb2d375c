"""Choose what to do about a verdict, from a catalogue of remedies. Pure."""
