"""Leader epochs: the cache, and its checkpoint file."""
