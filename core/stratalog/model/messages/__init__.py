"""Schemas of the records in Kafka's own topics, and of control records."""
