"""Access to compiled modules for tests that need them."""

from __future__ import annotations

from types import ModuleType

from requirement import Requirement, missing
from stratalog.extensions import absence, extension


def compiled_twin(module: str) -> ModuleType:
    """Return the compiled module; skip or fail the test without it, as ``requirement.missing`` does."""
    compiled_module = extension(module)
    if compiled_module is None:
        missing(Requirement.KERNELS, f"{module} is {absence(module)}")
    return compiled_module
