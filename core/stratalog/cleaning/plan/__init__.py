"""Plan retention and compaction."""
