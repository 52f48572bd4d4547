"""Leader epochs: their cache and their checkpoint file."""
