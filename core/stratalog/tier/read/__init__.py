"""Reads of segments in a tier, with caches and prefetching."""
