"""Views of a log directory or a tier: a report, a console and a table, all of one model."""
