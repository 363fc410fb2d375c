"""The outside of a capture: plan, price, trigger, progress, verification."""
