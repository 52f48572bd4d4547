"""Read a log over both tiers."""
