"""``stratalog doctor``: try a store or a log directory, and advise what to change."""

from stratalog.cli.doctor.command import doctor

__all__ = ["doctor"]
