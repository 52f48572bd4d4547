"""Preview and explanation of cleaning."""
