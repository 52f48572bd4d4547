"""The files of one log's folder."""
