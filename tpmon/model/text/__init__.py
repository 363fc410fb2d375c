"""Text of others made safe to show, and words that several packages share."""
