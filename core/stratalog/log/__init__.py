"""Log of one topic partition: appends, reads, offset bounds, loading and recovery."""
