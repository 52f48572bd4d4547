"""The object store of a tier, with deadlines, retries and checks."""
