"""Checks of a log directory: owner, lock, last stop, disk, and limits of the process."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
from pathlib import Path
from typing import Final

from stratalog.cli.doctor.diagnosis import Checks, Diagnosis, Outcome
from stratalog.cli.options import check_no_other_files
from stratalog.cli.output import size_text
from stratalog.engine.open.directory_id import read_identity
from stratalog.env import Env
from stratalog.log.folder.directory_state import (
    check_may_become_log_directory,
    is_log_directory,
    partition_folders,
    read_directory,
)
from stratalog.model.names import TOPICS_FILE
from stratalog.reading.topic_table import parse_topics
from stratalog.spi.segment_store import SegmentStore

_TRIAL_FILE: Final = ".stratalog-doctor"
_BLOCK_BYTES: Final = 4096
_TIMES: Final = 16
_SLOW_MS: Final = 20
_LOW_SHARE: Final = 0.1
_LOW_BYTES: Final = 1 << 30
_FEW_DESCRIPTORS: Final = 1024


class DirectoryChecks:
    """Checks of one directory. ``store`` is the directory, open for reading only."""

    def __init__(self, store: SegmentStore, path: Path, env: Env) -> None:
        self._store, self._path, self._env = store, path, env
        self._is_held = store.is_acquired_elsewhere()

    def checks(self) -> Checks:
        """Return the checks. If the first check fails, no other check runs."""
        return {
            "contents": self._contents,
            "owner": self._owner,
            "lock": self._lock,
            "last stop": self._last_stop,
            "free space": self._space,
            "file descriptors": self._descriptors,
            "sync": self._sync,
        }

    def _contents(self) -> Diagnosis:
        check_may_become_log_directory(self._store)
        if not is_log_directory(self._store):
            check_no_other_files(str(self._path))
            return Diagnosis(Outcome.OK, "no logs: an engine can begin here")
        parse_topics(self._store.read_small(TOPICS_FILE), self._store.path(TOPICS_FILE))  # raises an error if malformed
        return Diagnosis(Outcome.OK, f"{len(partition_folders(self._store))} logs")

    def _owner(self) -> Diagnosis:
        identity = read_identity(self._store)
        if not identity:
            return Diagnosis(Outcome.OK, "no meta.properties: the directory belongs to no Kafka broker")
        names = ("cluster.id", "node.id", "broker.id", "directory.id", "version")
        text = ", ".join(f"{name}={identity[name]}" for name in names if name in identity)
        return Diagnosis(Outcome.OK, f"a Kafka broker: {text}")

    def _lock(self) -> Diagnosis:
        if self._is_held:
            text = "another engine or a running broker holds the directory"
            return Diagnosis(Outcome.NOTE, text, "only read it (--dir of consume, archive), or stop the other program")
        return Diagnosis(Outcome.OK, "no other program holds the directory")

    def _last_stop(self) -> Diagnosis:
        if self._is_held or not partition_folders(self._store):
            return Diagnosis(Outcome.SKIPPED, "the directory is in use" if self._is_held else "there are no logs")
        if read_directory(self._store, live=False).clean:
            return Diagnosis(Outcome.OK, "the last program stopped cleanly")
        change = f"nothing: the next engine or broker recovers the logs; to do so now: stratalog recover {self._path}"
        return Diagnosis(Outcome.NOTE, "the last program did not stop cleanly", change)

    def _space(self) -> Diagnosis:
        usage = shutil.disk_usage(self._path)
        text = f"{size_text(usage.free)} of {size_text(usage.total)} are free"
        if usage.free < _LOW_BYTES:
            return Diagnosis(Outcome.WRONG, text, "free some space, or lower retention.bytes or local.retention.*")
        if usage.free < usage.total * _LOW_SHARE:
            return Diagnosis(Outcome.NOTE, text, "watch the disk, or lower retention.bytes or local.retention.*")
        return Diagnosis(Outcome.OK, text)

    def _descriptors(self) -> Diagnosis:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} for a process that starts here"
        if soft == resource.RLIM_INFINITY or soft >= _FEW_DESCRIPTORS:
            return Diagnosis(Outcome.OK, text)
        limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        return Diagnosis(Outcome.NOTE, text, f"ulimit -n {_FEW_DESCRIPTORS} or more (at most {limit})")

    def _sync(self) -> Diagnosis:
        if self._is_held:
            return Diagnosis(Outcome.SKIPPED, "nothing is written to a directory in use")
        path, files, clock = self._path / _TRIAL_FILE, self._env.files, self._env.clock
        times = list[float]()
        try:
            path.unlink(missing_ok=True)  # the file may be from a killed process
            descriptor = files.open(os.fspath(path), write=True, create=True)
            try:
                for number in range(_TIMES):
                    began_ns = clock.monotonic_ns()
                    files.write(descriptor, number * _BLOCK_BYTES, bytes(_BLOCK_BYTES))
                    files.sync(descriptor)
                    times.append((clock.monotonic_ns() - began_ns) / 1e6)
            finally:
                files.close(descriptor)
                path.unlink(missing_ok=True)
        except OSError as error:
            return Diagnosis(
                Outcome.WRONG, f"a file cannot be written: {error}", "let this user write to the directory"
            )
        text = f"median of {_TIMES}: {statistics.median(times):.2f} ms for 4 KiB and fsync, slowest {max(times):.2f} ms"
        if statistics.median(times) <= _SLOW_MS:
            return Diagnosis(Outcome.OK, text)
        return Diagnosis(Outcome.NOTE, text, "durable appends wait for it: use a faster disk, or durability=written")
