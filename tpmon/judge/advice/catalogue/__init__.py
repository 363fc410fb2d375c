"""The remedies, and what each verdict means: knowledge, no logic."""
