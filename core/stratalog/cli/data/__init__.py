"""Commands that read and write topics and records."""
