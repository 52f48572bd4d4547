"""Erasure of the records of one key."""
