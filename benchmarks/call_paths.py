"""The modules of stratalog that one append, one local fetch and one cold fetch from a tier go through.

    python benchmarks/call_paths.py [--calls]

Each call is profiled once, after a first call of its kind that fills caches; the cold fetch is the first one of its
segment. Only Python code counts, on the thread of the caller. ``--calls`` lists the functions in the order of calls.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from stratalog import Record, open_engine, open_reader

_TOPIC: Final = "paths"
_RECORDS: Final = 100
_APPENDS: Final = 60
_CONFIG: Final = {"segment.bytes": 200_000, "remote.storage.enable": True, "local.retention.bytes": 1}


def main(arguments: list[str]) -> int:
    """Print the modules of each path, with the number of calls into each."""
    with tempfile.TemporaryDirectory(prefix="call-paths-") as scratch:
        for name, calls in paths(Path(scratch)).items():
            modules = Counter(module for module, _ in calls)
            print(f"{name}: {len(modules)} modules, {len(calls)} calls")
            if "--calls" in arguments:
                for module, function in calls:
                    print(f"    {module}.{function}")
            else:
                for module, count in modules.items():
                    print(f"    {count:3} {module}")
    return 0


def paths(scratch: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the calls of each path, as pairs of module and function, in order."""
    folder, records = scratch / "tier", [Record(value=b"v" * 100)] * _RECORDS
    folder.mkdir()
    tier = folder.as_uri()
    with open_engine(scratch / "data", tier=tier) as engine:
        engine.create_topic(_TOPIC, config=_CONFIG)
        log = engine.log(_TOPIC, 0)
        for _ in range(_APPENDS):
            log.append(records)
        offset = log.segments()[-1].base_offset + 1
        log.fetch(offset, 1).release()
        found = {
            "append": called(lambda: log.append(records)),
            "local fetch": called(lambda: log.fetch(offset, 1).release()),
        }
        engine.offload()
    with open_reader(tier) as reader:
        cold = reader.log(_TOPIC, 0)
        middle = cold.segments()[1].base_offset + 1
        cold.fetch(0, 1).release()
        found["cold fetch from the tier"] = called(lambda: cold.fetch(middle, 1).release())
    return found


def called(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the functions of stratalog that ``work`` calls."""
    codes = list[tuple[str, CodeType]]()

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call":
            codes.append((frame.f_globals.get("__name__", ""), frame.f_code))

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return [(module, code.co_qualname) for module, code in codes if module.startswith("stratalog")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
