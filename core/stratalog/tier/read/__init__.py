"""Remote segments, and the caches over them."""
