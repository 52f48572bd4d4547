"""All records of one topic partition: append, fetch, bounds, loading and recovery."""
