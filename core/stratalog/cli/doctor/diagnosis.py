"""Results of the checks of ``stratalog doctor``, and the function that runs the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from stratalog.errors import StorageError


class Outcome(StrEnum):
    """Outcome of a check of ``stratalog doctor``."""

    OK = "ok"
    NOTE = "note"  # the check passed, but a change is suggested
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of one check: ``text`` describes the result; ``change`` is the suggested change, or ""."""

    outcome: Outcome
    text: str
    change: str = ""


Checks: TypeAlias = Mapping[str, Callable[[], Diagnosis]]
"""The checks of a store or a directory by name, in their order."""


def run_checks(checks: Checks) -> Iterator[tuple[str, Diagnosis]]:
    """Run the checks in their order. Yield the name and the result of each check as soon as the check ends.

    If a check raises a StorageError, its outcome is ``Outcome.WRONG``. If the outcome of the first check is
    ``Outcome.WRONG``, no other check runs.
    """
    for number, (name, check) in enumerate(checks.items()):
        try:
            diagnosis = check()
        except StorageError as error:
            diagnosis = Diagnosis(Outcome.WRONG, str(error).removesuffix(f": {error.advice}"), error.advice)
        yield name, diagnosis
        if number == 0 and diagnosis.outcome is Outcome.WRONG:
            return
