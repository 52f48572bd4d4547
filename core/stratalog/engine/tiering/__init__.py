"""Offload of segments to a tier, and takeover (attach) of a tier's logs."""
