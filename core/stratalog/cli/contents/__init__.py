"""Formatters of record contents (text, JSON, bytes) for all commands that show records."""
