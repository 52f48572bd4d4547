"""Upload of closed segments to the tier."""
