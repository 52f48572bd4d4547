"""Reads of a log, from local disk and from its tier."""
