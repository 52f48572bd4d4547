"""Producers' state of a log: sequence numbers, open transactions, snapshots."""
