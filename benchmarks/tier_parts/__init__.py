"""What ``tier.py`` is made of."""
