"""Hashes of keys, and tables of their latest offsets."""
