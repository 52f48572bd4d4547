"""Producers and consumers of an engine: batching, transactions and committed offsets.

The state is stored as in Kafka: in ``__consumer_offsets`` and ``__transaction_state``, with Kafka's schemas.
"""
