"""What ``cleaning.py`` is made of."""
