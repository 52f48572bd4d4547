"""Log directories, and the logs opened in them."""
