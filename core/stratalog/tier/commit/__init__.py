"""Commits of a log's manifest."""
