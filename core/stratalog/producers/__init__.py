"""Producers' state of a log: sequences, open transactions, snapshots."""
