"""Classic consumer groups: their members, generations and assignments."""
