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
    """Result of one check: ``text`` describes it, and ``change`` is the advised change; "" if there is none."""

    outcome: Outcome
    text: str
    change: str = ""


def run_checks(checks: Mapping[str, Callable[[], Diagnosis]]) -> Iterator[tuple[str, Diagnosis]]:
    """Run the checks in their order, and yield the name and the result of each as soon as it is known.

    A StorageError becomes a result with ``Outcome.WRONG``. If this is the outcome of the first check, no other check
    runs.
    """
    for number, (name, check) in enumerate(checks.items()):
        try:
            diagnosis = check()
        except StorageError as error:
            diagnosis = Diagnosis(Outcome.WRONG, str(error))
        yield name, diagnosis
        if number == 0 and diagnosis.outcome is Outcome.WRONG:
            return
