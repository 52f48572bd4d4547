"""What a log remembers of producers: sequences, open transactions, snapshots."""
