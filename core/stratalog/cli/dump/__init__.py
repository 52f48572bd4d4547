"""``stratalog dump``: show the contents of files of logs and tiers."""
