"""Producers and consumers of an engine: batching, transactions and committed offsets.

Offsets and transactions are stored as in Kafka: in ``__consumer_offsets`` and ``__transaction_state``.
"""
