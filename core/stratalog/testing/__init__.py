"""Tools for plugin authors: contract classes, open contexts, pytest fixtures, fault injection, a local S3 server."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.testing.contexts import layout_lookup, open_context, topic_config

__all__ = ["layout_lookup", "open_context", "topic_config"]


def __getattr__(name: str) -> object:
    """Return a function of ``__all__``, imported at its first use; raise AttributeError for another name.

    pytest imports this package in every run, including runs of other projects. Therefore the import must be cheap.
    """
    if name in __all__:
        return getattr(importlib.import_module("stratalog.testing.contexts"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
