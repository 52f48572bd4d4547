"""Parts of ``log.py``."""
