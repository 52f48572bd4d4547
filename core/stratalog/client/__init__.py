"""Producers and consumers of an engine: batching, transactions, committed offsets, in Kafka's own topics and schemas."""
