"""Commands about a tier: look into it, fill it, and restore from it."""
