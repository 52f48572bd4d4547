"""Compaction of a log in two passes."""
