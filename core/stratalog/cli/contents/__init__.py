"""Contents of records as text, JSON and bytes, for every command that shows records."""
