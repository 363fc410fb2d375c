"""What every screen is made of: canvas, ink, tables, sheets, keys. Knows no job."""
