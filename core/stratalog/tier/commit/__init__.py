"""Commits to the manifest of a log: changes of its list of segments in the tier."""
