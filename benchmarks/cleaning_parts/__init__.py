"""Parts of ``cleaning.py``."""
