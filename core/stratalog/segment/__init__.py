"""Segments of a log: their files, appending, searching, checking and recovery."""
