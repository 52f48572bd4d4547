"""Measure the memory of one operation in a separate process.

memory_child.py upload|reader FOLDER URI OPTIONS: prints the peak in bytes, ``null`` if the system does not report it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import UnsupportedPlatformError, peak_of
from stratalog import open_reader
from tier_parts.logs import REMOTE, Store, engine_on, fetch_all


def upload(folder: str, store: Store) -> int:
    """Return the peak of memory of the offload of a log's closed segments, in bytes."""
    with engine_on(Path(folder), store) as engine:
        return peak_of(engine.offload).bytes


def read(store: Store) -> int:
    """Return the peak of memory of a read of a whole log that is in a tier, in bytes."""
    with open_reader(store.uri, tier_options=dict(store.options)) as reader:
        log = reader.log(REMOTE, 0)
        log.fetch(0).release()
        peak = peak_of(lambda: fetch_all(log))
        if not peak.result:
            raise AssertionError("nothing was read")
        return peak.bytes


def main(operation: str, folder: str, uri: str, options: str) -> None:
    """Run the measurement that the command line selects, and print its result as JSON."""
    store = Store(uri, json.loads(options))
    peak_bytes: int | None
    try:
        peak_bytes = upload(folder, store) if operation == "upload" else read(store)
    except UnsupportedPlatformError:
        peak_bytes = None
    print(json.dumps(peak_bytes))


if __name__ == "__main__":
    main(*sys.argv[1:])
