"""Logs whose segments, except the active one, are closed and are or will be in a tier."""

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
_RECORD_BYTES: Final = 118  # bytes of a record in the batches of make_log
_REMOTE_CONFIG: Final = {"remote.storage.enable": True, "retention.ms": -1, "local.retention.bytes": 1}
_ALIKE: Final = frozenset({".log"})  # files that are hard links in a copy, because closed segments do not change


@dataclass(frozen=True, slots=True)
class Store:
    """Location of a tier.

    Attributes:
        uri: URI of the tier.
        options: options of its file system.
    """

    uri: str
    options: Mapping[str, Any]


def engine_on(folder: Path, store: Store, settings: Mapping[str, object] | None = None) -> Engine:
    """Open an engine with a tier."""
    config = {"log.dirs": [str(folder)], **(settings or {})}
    return open_engine(config=config, tier=store.uri, tier_options=dict(store.options))


@dataclass(frozen=True, slots=True)
class LocalLog:
    """A log of the topic ``remote`` on local disk, which is not offloaded yet. Its active segment is empty.

    Attributes:
        folder: directory of the engine.
        records: number of records in the log.
        size_bytes: size of the closed segments.
    """

    folder: Path
    records: int
    size_bytes: int

    @property
    def files(self) -> list[Path]:
        """Files of the closed segments: logs, indexes and snapshots."""
        files = sorted((self.folder / f"{REMOTE}-0").glob("0*"))
        last = max(file.stem for file in files if file.suffix == ".log")
        return [file for file in files if file.stem != last and file.stat().st_size]

    @contextmanager
    def copy(self, folder: Path) -> Iterator[Path]:
        """Yield a copy of the engine's directory, whose segment files are hard links; delete the copy afterwards."""
        shutil.copytree(self.folder, folder, copy_function=_link_or_copy)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def make_log(folder: Path, store: Store, size_bytes: int, segment_bytes: int, *, with_local: bool = False) -> LocalLog:
    """Write a log. With ``with_local``, also write the same records to the topic ``local``, which has no tier."""
    config = {"segment.bytes": segment_bytes}
    batch = [Record(key=b"k%09d" % row, value=os.urandom(50).hex().encode()) for row in range(_BATCH_RECORDS)]
    appends = -(-size_bytes // (_BATCH_RECORDS * _RECORD_BYTES))
    with engine_on(folder, store) as engine:
        engine.create_topic(REMOTE, config={**config, **_REMOTE_CONFIG})
        logs = [engine.log(REMOTE, 0)]
        if with_local:
            engine.create_topic(LOCAL, config={**config, "remote.storage.enable": False})
            logs.append(engine.log(LOCAL, 0))
        for _ in range(appends):
            for log in logs:
                log.append(batch)
        logs[0].roll()
        closed_bytes = sum(segment.size_bytes for segment in logs[0].segments())
        logs[0].flush()
    return LocalLog(folder, appends * len(batch), closed_bytes)


def offload(local_log: LocalLog, store: Store) -> None:
    """Move the closed segments to the tier, and delete them on local disk."""
    with engine_on(local_log.folder, store) as engine:
        engine.offload()
        engine.apply_retention()


def fetch_all(log: LogReader) -> int:
    """Fetch all batches of a log from its start, and return their size in bytes."""
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
