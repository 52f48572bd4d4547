"""Complete jobs on Spark. Each is a function of a session that returns a summary."""
