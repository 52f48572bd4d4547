"""One slice of a log: its files, how it grows, how it is searched, how it is recovered."""
