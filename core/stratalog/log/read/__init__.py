"""Reads of a log over both tiers."""
