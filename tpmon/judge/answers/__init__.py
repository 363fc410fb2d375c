"""What a rule may answer, and what must have been observed before a remedy is advised."""
