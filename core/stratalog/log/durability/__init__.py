"""Syncs, and the threads that wait for them."""
