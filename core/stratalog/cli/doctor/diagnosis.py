"""Result of one check of ``stratalog doctor``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from stratalog.errors import StorageError


class Outcome(StrEnum):
    """Outcome of a check of ``stratalog doctor``."""

    OK = "ok"
    NOTE = "note"  # the check passed, but a change is advised
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One check: what was found, and what to change; ``change`` is "" if nothing needs a change."""

    name: str
    outcome: Outcome
    found: str
    change: str = ""


def tried(name: str, step: Callable[[], Diagnosis]) -> Diagnosis:
    """Return the result of ``step``; for a StorageError, a result with ``Outcome.WRONG`` and the text of the error."""
    try:
        return step()
    except StorageError as error:
        return Diagnosis(name, Outcome.WRONG, str(error))
