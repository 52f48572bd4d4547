"""Syncs of a log, and the threads that wait for syncs."""
