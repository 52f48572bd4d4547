"""Reading a directory or a tier without an engine, without a lock, without a write."""
