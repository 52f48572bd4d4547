"""Batches that are ready to be written: the compiled class if it is available, otherwise the class in pure Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.extensions import extension
from stratalog.model import prepared_py

__all__ = ["PreparedBatches", "Rules"]

_twin: Final = extension("stratalog.model.prepared_c") or prepared_py

if TYPE_CHECKING:
    from stratalog.model.prepared_py import PreparedBatches, Rules  # the type of both twins
else:
    PreparedBatches, Rules = _twin.PreparedBatches, _twin.Rules
