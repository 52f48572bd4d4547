"""``stratalog dump``: show the contents of files of logs and tiers."""

from stratalog.cli.dump.command import dump

__all__ = ["dump"]
