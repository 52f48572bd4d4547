"""Commands that show a tier, copy logs to it, and restore logs from it."""
