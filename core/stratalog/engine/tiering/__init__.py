"""Offload to a tier, and attach of a tier's logs."""
