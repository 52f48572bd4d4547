"""Changes of an open log's segments: deletion, truncation, replacement."""
