"""Values without I/O, shared by all packages: names, offsets, batches, records, segments, events."""
