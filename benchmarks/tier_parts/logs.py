"""Logs with all but their active segment closed, in a tier or on their way there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stratalog import Engine, Record, open_engine
from stratalog.log.read.log_reader import LogReader

REMOTE: Final = "remote"
LOCAL: Final = "local"
_BATCH_RECORDS: Final = 8_000
_RECORD_BYTES: Final = 118  # of a batch, as they are made here
_REMOTE_CONFIG: Final = {"remote.storage.enable": True, "retention.ms": -1, "local.retention.bytes": 1}
_ALIKE: Final = frozenset({".log"})  # files that are linked: nobody writes to closed ones


@dataclass(frozen=True, slots=True)
class Store:
    """Where a tier is.

    Attributes:
        uri: of the tier.
        options: of its file system.
    """

    uri: str
    options: Mapping[str, Any]


def engine_on(folder: Path, store: Store, settings: Mapping[str, object] | None = None) -> Engine:
    """An engine with a tier."""
    config = {"log.dirs": [str(folder)], **(settings or {})}
    return open_engine(config=config, tier=store.uri, tier_options=dict(store.options))


@dataclass(frozen=True, slots=True)
class MadeLog:
    """A log on local disk with its last segment empty, in the topic ``remote``, which has a tier; nothing is there yet.

    Attributes:
        folder: the engine's.
        records: in the log.
        size_bytes: of its closed segments.
    """

    folder: Path
    records: int
    size_bytes: int

    @property
    def files(self) -> list[Path]:
        """Of the closed segments: logs, indexes and snapshots."""
        found = sorted((self.folder / f"{REMOTE}-0").glob("0*"))
        last = max(file.stem for file in found if file.suffix == ".log")
        return [file for file in found if file.stem != last and file.stat().st_size]

    @contextmanager
    def copied(self, folder: Path) -> Iterator[Path]:
        """Yield a copy of the log in another folder, whose segments are links, and delete it afterwards."""
        shutil.copytree(self.folder, folder, copy_function=_link_or_copy)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def make_log(folder: Path, store: Store, size_bytes: int, segment_bytes: int, *, beside: bool = False) -> MadeLog:
    """Write a log. With ``beside``, also write the same records to the topic ``local``, which has no tier."""
    config = {"segment.bytes": segment_bytes}
    batch = [Record(key=b"k%09d" % row, value=os.urandom(50).hex().encode()) for row in range(_BATCH_RECORDS)]
    appends = -(-size_bytes // (_BATCH_RECORDS * _RECORD_BYTES))
    with engine_on(folder, store) as engine:
        engine.create_topic(REMOTE, config={**config, **_REMOTE_CONFIG})
        logs = [engine.log(REMOTE, 0)]
        if beside:
            engine.create_topic(LOCAL, config={**config, "remote.storage.enable": False})
            logs.append(engine.log(LOCAL, 0))
        for _ in range(appends):
            for log in logs:
                log.append(batch)
        logs[0].roll()
        closed_bytes = sum(found.size_bytes for found in logs[0].segments())
        logs[0].flush()
    return MadeLog(folder, appends * len(batch), closed_bytes)


def offload(made: MadeLog, store: Store) -> None:
    """Move what is closed to the tier, and delete it here."""
    with engine_on(made.folder, store) as engine:
        engine.offload()
        engine.apply_retention()


def fetch_all(log: LogReader) -> int:
    """The bytes of all batches of a log, from its start."""
    offset, size_bytes = log.offsets().log_start, 0
    while True:
        with log.fetch(offset) as fetched:
            if fetched.next_offset == offset:
                return size_bytes
            offset = fetched.next_offset
            size_bytes += fetched.size_bytes


def _link_or_copy(source: str, target: str) -> None:
    if Path(source).suffix in _ALIKE:
        os.link(source, target)
    else:
        shutil.copyfile(source, target)
