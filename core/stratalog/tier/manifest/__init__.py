"""Roots and pages: the manifest of one log."""
