"""The engine: log directories, topics, and the background duties of all logs."""
