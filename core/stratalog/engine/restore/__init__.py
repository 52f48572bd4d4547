"""Restore logs from a tier."""
