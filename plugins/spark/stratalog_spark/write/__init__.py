"""Batches and streams that write."""
