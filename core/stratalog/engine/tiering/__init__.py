"""The engine's use of a tier."""
