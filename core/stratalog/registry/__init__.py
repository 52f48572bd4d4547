"""Discovers plugins, asks them what they offer, and resolves names and schemes to components."""
