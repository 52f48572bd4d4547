"""Erase the records of one key."""
