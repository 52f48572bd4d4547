"""Closed segments in an object store: manifest chain, commit, offload, fetch, expiry."""
