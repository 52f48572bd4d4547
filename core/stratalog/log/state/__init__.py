"""State of one open log."""
