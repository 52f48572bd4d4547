"""Options of reads, writes and tables."""
