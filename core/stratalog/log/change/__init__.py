"""Delete, truncate and replace segments of an open log."""
