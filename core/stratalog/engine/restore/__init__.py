"""Restoring logs from a tier into a log directory."""
