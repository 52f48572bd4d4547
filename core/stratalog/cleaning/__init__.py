"""Planning and execution of cleanup policies: retention, compaction, and erasure of keys."""
