"""Compact a log in two passes."""
