"""Values without I/O, shared by every room: names, offsets, batches, records, segments, events."""
