"""The append path of a log."""
