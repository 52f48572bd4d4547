"""Import of optional compiled modules, and the reason why a compiled module is not used.

A compiled module gives the same results as the Python code that it replaces, but faster. If no C compiler was
available when the package was built, the Python code runs. ``STRATALOG_NO_EXTENSIONS=1`` at run time disables all
compiled modules.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

SWITCH: Final = "STRATALOG_NO_EXTENSIONS"


def extension(module: str) -> ModuleType | None:
    """Return the compiled module ``module``; None if it cannot be used. ``absence`` returns the reason."""
    if os.environ.get(SWITCH):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def absence(module: str) -> str:
    """Return the reason why ``extension`` returns None for this module, or "" if the module is available."""
    if os.environ.get(SWITCH):
        return f"switched off by {SWITCH}"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            return f"cannot be loaded: {error.name} is not installed"
        return f"not built: install a C compiler, then install stratalog again without {SWITCH}"
    except ImportError as error:
        return f"cannot be loaded: {error}"
    return ""
