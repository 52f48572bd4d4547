"""Collect garbage, check and repair a tier."""
