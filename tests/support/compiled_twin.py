"""A compiled twin, or why a test does without."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from stratalog.extensions import SWITCH, absence, extension


def compiled_twin(module: str) -> ModuleType:
    """The compiled module; the test is skipped without it, and fails in CI, unless somebody switched compiled code off."""
    found = extension(module)
    if found is None:
        reason = f"{module} is {absence(module)}"
        if os.environ.get("CI") and not os.environ.get(SWITCH):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
