"""Checks and encoding of records before an append, outside the log's lock."""
