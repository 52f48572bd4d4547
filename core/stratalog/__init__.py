"""Kafka's storage layer as a library, open to plugins, with tiers behind it."""

__version__ = "0.1.0"
