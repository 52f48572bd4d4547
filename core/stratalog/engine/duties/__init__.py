"""Background duties and services."""
