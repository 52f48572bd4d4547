"""Compiled twins of pure-Python code: which are in use, and why others are not.

A twin does the same as the Python beside it, faster; where no compiler was there when the package was built, Python does
the work. ``STRATALOG_NO_EXTENSIONS=1`` at run time chooses Python for all.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

SWITCH: Final = "STRATALOG_NO_EXTENSIONS"


def extension(module: str) -> ModuleType | None:
    """The compiled module of this name, None if Python is to do its work; ``absence`` tells why."""
    if os.environ.get(SWITCH):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def absence(module: str) -> str:
    """Why ``extension`` has no such module, "" if it has it."""
    if os.environ.get(SWITCH):
        return f"switched off by {SWITCH}"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return "not built: no C compiler was there, or it was switched off, when the package was installed"
    except ImportError as error:
        return f"cannot be loaded: {error}"
    return ""
