"""The table of ``docs/plugins.md`` that shows the result of each wrong method.

To make the table again, run ``tests/core/registry/test_wrong_components.py`` with ``FAULT_OUTCOMES=FILE``, and then this
file as a program with the same FILE.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Final

from broken_bed import LISTENER, Outcome
from broken_parts import Fault, parts_and_methods

PAGE: Final = Path(__file__).parents[2] / "docs" / "plugins.md"
BEGIN: Final = "<!-- begin faults: tests/support/fault_table.py -->"
END: Final = "<!-- end faults -->"
METHODS: Final = [*(method for _, method in parts_and_methods()), LISTENER]


def documented(method: str, fault: Fault, outcome: Outcome) -> str:
    """Return the result that the page has for a wrong method; ``outcome`` itself if the table is being made."""
    record = os.environ.get("FAULT_OUTCOMES")
    if record is not None:
        with Path(record).open("a", encoding="utf-8") as file:
            file.write(f"{method} {fault.name} {outcome}\n")
        return outcome
    return _page()[method][list(Fault).index(fault)]


@cache
def _page() -> dict[str, list[str]]:
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


def write(record: Path) -> None:
    """Write the recorded results into the page."""
    found = dict[tuple[str, str], str]()
    for line in record.read_text(encoding="utf-8").splitlines():
        method, fault, outcome = line.split()
        found[method, fault] = outcome
    lines = [f"| Method | {' | '.join(Fault)} |", f"| --- |{' --- |' * len(Fault)}"]
    lines += [f"| `{method}` | {' | '.join(found[method, fault.name] for fault in Fault)} |" for method in METHODS]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, *lines, END]) + after, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
