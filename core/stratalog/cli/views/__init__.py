"""Views of a log directory or a tier: a report, a console and a live table, which all show the same model."""
