"""Files of one log's folder."""
