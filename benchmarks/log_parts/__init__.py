"""What ``log.py`` measures, and how each side does it."""
