"""Commands of ``stratalog spark``."""
