"""Background duties of an engine, and the services of plugins that run beside it."""
