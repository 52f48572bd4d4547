"""The table of ``docs/plugins.md`` that shows the result of each broken method.

To write the table again, run ``tests/core/registry/test_wrong_components.py`` with ``FAULT_OUTCOMES=FILE``, and then
run this file as a program with the same FILE.
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
_OBJECT: Final = "the result is an object, whose own methods are checked"
_ENTRY: Final = "a search compares an index entry with the batch at its position, and scans if they differ"
_TEXT: Final = "people see the result in texts and statistics; the result has no influence on records"
_NO_RESULT: Final = "the method has no result that the engine uses"
_NOT_SYNCED: Final = "only a power loss shows that nothing was synced"
UNSEEN_LIES: Final = {
    "RecordFormat.decode_arrow": "a check would decode the batches a second time",
    "IndexFormat.around": _ENTRY,
    "IndexFormat.builder": _OBJECT,
    "IndexFormat.reader": _OBJECT,
    "IndexBuilder.add": _ENTRY,
    "IndexBuilder.finish": _ENTRY,
    "IndexBuilder.full": "the segment is rolled earlier or later",
    "IndexReader.check": _ENTRY,
    "ExtraIndex.builder": _OBJECT,
    "ExtraIndex.reader": _OBJECT,
    "SegmentStore.close": _NO_RESULT,
    "SegmentStore.logs": "a log that the list leaves out is not opened, and its files stay in the directory",
    "SegmentStore.path": _TEXT,
    "LogFiles.list": "if the list has an index file, it must have the `.log` file of the same segment; the engine cannot know if another file is missing",
    "LogFiles.open_index": _OBJECT,
    "LogFiles.open_segment": _OBJECT,
    "LogFiles.path": _TEXT,
    "LogFiles.sync": _NOT_SYNCED,
    "SegmentFile.close": _NO_RESULT,
    "SegmentFile.modified_ms": "the engine cannot know the correct modification time",
    "SegmentFile.sync": _NOT_SYNCED,
    "SegmentFile.trim": "after a wrong `True`, the engine syncs once more than necessary; after a wrong `False`, the new file size is possibly not durable, and recovery checks the end of the file",
    "IndexFile.close": _NO_RESULT,
    "IndexFile.trim": _NO_RESULT,
    "IndexFile.sync": _NOT_SYNCED,
    "IndexFile.truncate": _ENTRY,
    "ObjectStore.close": _NO_RESULT,
    "ObjectStore.is_cached": "the result only decides how the engine reads the bytes",
    "ObjectStore.list": "if the list leaves out an object, the engine still reads the object by its key; when no root names the object, a later garbage collection deletes it",
    "ObjectStore.read_cached": "the bytes are checked like the result of `read`",
    "ObjectStore.unfinished": "the engine uses the result only to abort unfinished uploads",
    "TierLayout.authenticator": "`None` is a valid result: a layout without encryption keys has no authenticator",
    "TierLayout.check": _NO_RESULT,
    "TierLayout.takes_uncompressed": "`True` and `False` are both valid results",
    "CleanupPolicy.local_plan": "the engine evicts only segments that the tier has",
    "CleanupPolicy.plan": "only the policy knows which records it wants to delete",
    "CleanupPolicy.record_filter": _OBJECT,
    "RecordFilter.judge": "only the filter knows which records it wants to keep",
    "RecordFilter.load": _TEXT,
    "Service.start": _NO_RESULT,
    "Service.stop": _NO_RESULT,
    "listener.stratalog_on_segment_rolled": _NO_RESULT,
}
"""Methods whose lies the engine cannot detect, and why."""
METHODS: Final = [*(method for _, method in parts_and_methods()), LISTENER]


def documented(method: str, fault: Fault, outcome: Outcome) -> str:
    """Return the documented result of a broken method.

    If ``FAULT_OUTCOMES`` is set, add ``outcome`` to that file and return it instead.
    """
    record = os.environ.get("FAULT_OUTCOMES")
    if record is not None:
        with Path(record).open("a", encoding="utf-8") as file:
            file.write(f"{method} {fault.name} {outcome}\n")
        return outcome
    return _page()[method][list(Fault).index(fault)]


def documented_unseen_lies() -> set[str]:
    """Return the methods for which the page says that wrong results (lies) are not detected."""
    return {method for method, outcomes in _page().items() if outcomes[list(Fault).index(Fault.LIES)] == Outcome.UNSEEN}


@cache
def _page() -> dict[str, list[str]]:
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    table = text.strip().partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows[2:]}


def write(record: Path) -> None:
    """Write the recorded results into the page. Results in the page that were not recorded stay."""
    outcomes = {
        (method, fault.name): row[number] for method, row in _page().items() for number, fault in enumerate(Fault)
    }
    for line in record.read_text(encoding="utf-8").splitlines():
        method, fault, outcome = line.split()
        outcomes[method, fault] = outcome
    lines = [f"| Method | {' | '.join(Fault)} |", f"| --- |{' --- |' * len(Fault)}"]
    lines += [f"| `{method}` | {' | '.join(outcomes[method, fault.name] for fault in Fault)} |" for method in METHODS]
    text = PAGE.read_text(encoding="utf-8")
    lines += ["", "| A wrong value of this method is undetected | because |", "| --- | --- |"]
    for reason in dict.fromkeys(UNSEEN_LIES.values()):
        methods = ", ".join(f"`{method}`" for method, found_reason in UNSEEN_LIES.items() if found_reason == reason)
        lines.append(f"| {methods} | {reason} |")
    before, _, remainder = text.partition(BEGIN)
    after = remainder.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, *lines, END]) + after, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
