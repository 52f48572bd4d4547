"""Upkeep of a tier: deletion of unneeded objects, checks, and repair."""
