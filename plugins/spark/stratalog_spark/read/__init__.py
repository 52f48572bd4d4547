"""Batches and streams that read."""
