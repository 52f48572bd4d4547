"""Check and encode records before an append, outside the log's lock."""
