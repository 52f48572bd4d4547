"""The manifest of one log: its list of segments in the tier, stored as roots and pages."""
