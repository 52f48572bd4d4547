"""The manifest of one log: roots and pages."""
