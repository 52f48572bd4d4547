"""``stratalog dump``: what is in the files of logs and tiers."""

from stratalog.cli.dump.command import dump

__all__ = ["dump"]
