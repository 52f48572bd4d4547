"""``stratalog doctor``: test a store or a log directory, and suggest changes."""
