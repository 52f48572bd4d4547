"""Views of a log directory or a tier: a report (HTML file), a console (web pages) and a live table (terminal)."""
