"""Parts of ``tier.py``."""
