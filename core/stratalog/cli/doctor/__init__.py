"""``stratalog doctor``: try a store or a log directory, and advise what to change."""
