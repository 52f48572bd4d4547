"""Functions for ``Provider.open``. They import the module of a component when they are called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from stratalog.spi import OpenContext


def opener_of(
    module: str, name: str, arguments: Callable[[OpenContext], tuple[object, ...]] = lambda context: (context,)
) -> Callable[[OpenContext], Any]:  # Any: a component of any kind
    """Return a function that imports a module of this package, and calls ``name``, a class or a function in it.

    ``arguments`` returns the arguments of the call; the default is the context alone.
    """
    return lambda context: getattr(import_module(f"stratalog_formats.{module}"), name)(*arguments(context))
