"""Closed segments on their way to the tier."""
