"""The engine: log directories, topics, and the duties over all logs."""
