"""Checks of ``stratalog doctor``: their results, and the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    """Result of one check: what was found, and what to change; ``change`` is "" if nothing needs a change."""

    outcome: Outcome
    found: str
    change: str = ""


def run_checks(checks: Mapping[str, Callable[[], Diagnosis]]) -> Iterator[tuple[str, Diagnosis]]:
    """Run the checks in their order, and yield the name and the result of each as soon as it is known.

    A StorageError becomes a result with ``Outcome.WRONG``. If this is the outcome of the first check, no other check
    runs.
    """
    for number, (name, check) in enumerate(checks.items()):
        try:
            found = check()
        except StorageError as error:
            found = Diagnosis(Outcome.WRONG, str(error))
        yield name, found
        if number == 0 and found.outcome is Outcome.WRONG:
            return
