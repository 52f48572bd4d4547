"""Preview and explain what cleaning does."""
