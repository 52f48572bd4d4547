"""State of an export, stored in its destination: each run has a plan file, and each completed run has a done file.

The plan is written before the files of the run, and the done file after them. The plan alone determines the names of
the files. If a run has no done file, the next call repeats the plan with the same file names, so no record is exported
twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import fsspec

from stratalog import TopicPartition
from stratalog.errors import ConfigError, CorruptCheckpointError

FOLDER: Final = "_stratalog"  # readers of Parquet ignore names with this prefix
VERSION: Final = 1
_RENAMES: Final = frozenset({"file", "local", "hdfs", "sftp", "ssh", "smb", "arrow_hdfs", "webhdfs"})


@dataclass(frozen=True, slots=True)
class Target:
    """A folder on any fsspec file system. Can be pickled. Options may be credentials, and are never printed."""

    url: str
    options: tuple[tuple[str, object], ...] = ()

    def __repr__(self) -> str:
        return f"Target({self.url!r})"

    def open(self) -> tuple[Any, str]:
        """Return fsspec's file system, and the path of the folder in it."""
        fs, path = fsspec.core.url_to_fs(self.url, **dict(self.options))
        return fs, path.rstrip("/")

    def put(self, local: str, name: str) -> None:
        """Store a copy of a local file atomically. An existing file is replaced. Raise OSError if the copy fails."""
        fs, folder = self.open()
        path = posixpath.join(folder, name)
        fs.makedirs(posixpath.dirname(path), exist_ok=True)
        if not _RENAMES.intersection(_protocols(fs)):
            fs.put_file(local, path)  # atomic: an object store shows only complete objects
            return
        # other tasks put files into this folder at the same time
        temporary_path = posixpath.join(posixpath.dirname(path), f".{uuid4().hex}")
        try:
            fs.put_file(local, temporary_path)
            fs.mv(temporary_path, path)
        except BaseException:
            with contextlib.suppress(OSError):
                fs.rm_file(temporary_path)
            raise


def _protocols(fs: Any) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one run.

    Attributes:
        number: number of the run, from 1 on.
        style: settings of the rows, equal for all runs with one destination; JSON values.
        ranges: ranges to export: partition and offsets [start, end). Each range becomes one or more files.
        ends: for each partition that this or an earlier run exports: exclusive end offset up to which it is exported
            after this run.
    """

    number: int
    style: Mapping[str, object]
    topic_ids: Mapping[str, str]
    ranges: tuple[tuple[TopicPartition, int, int], ...]
    ends: Mapping[TopicPartition, int]

    def to_json(self) -> bytes:
        """Return the content of the plan's file."""
        body = {
            "version": VERSION,
            "number": self.number,
            "style": dict(self.style),
            "topic_ids": dict(self.topic_ids),
            "ranges": [[name.topic, name.partition, start, end] for name, start, end in self.ranges],
            "ends": [[name.topic, name.partition, end] for name, end in sorted(self.ends.items())],
        }
        return json.dumps(body, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, file: str) -> Plan:
        """Parse the output of ``to_json``. Raise CorruptCheckpointError if this release cannot read it."""
        try:
            body = json.loads(data)
            version = body["version"]
            plan = cls(
                body["number"],
                body["style"],
                body["topic_ids"],
                tuple((TopicPartition(topic, number), start, end) for topic, number, start, end in body["ranges"]),
                {TopicPartition(topic, number): end for topic, number, end in body["ends"]},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpointError(f"the plan of an export is malformed: {error}", file, 0) from error
        if version != VERSION:
            raise CorruptCheckpointError(f"a plan of version {version!r} is not supported by this release", file)
        return plan


class Ledger:
    """Plans in one destination. The first plan creates the folder.

    Methods raise OSError if the file system fails, and CorruptCheckpointError if a stored plan is malformed, or written
    by a later release.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._fs, self._root = target.open()
        self._fs.invalidate_cache()  # otherwise runs of other processes since an earlier call are not found
        self._folder = posixpath.join(self._root, FOLDER)
        self.url = target.url

    def last(self) -> tuple[Plan | None, bool]:
        """Return the last plan, and True if this plan was completed; (None, True) if there is no plan."""
        if not self._fs.exists(self._folder):
            return None, True
        names = {posixpath.basename(str(path)) for path in self._fs.ls(self._folder, detail=False)}
        plans = sorted(name for name in names if name.endswith(".plan.json"))
        if not plans:
            return None, True
        path = posixpath.join(self._folder, plans[-1])
        plan = Plan.from_json(self._fs.cat_file(path), path)
        return plan, _name(plan.number, "done") in names

    def begin(self, plan: Plan) -> Plan:
        """Store a plan before its files are written, and return the plan.

        If another run has stored a plan with this number, return that plan.
        """
        self._fs.makedirs(self._folder, exist_ok=True)
        path = posixpath.join(self._folder, _name(plan.number, "plan"))
        try:
            self._create(path, plan.to_json())
        except FileExistsError:
            return Plan.from_json(self._fs.cat_file(path), path)
        return plan

    def _create(self, path: str, data: bytes) -> None:
        """Create a file atomically. Raise FileExistsError if it exists."""
        if "file" not in _protocols(self._fs):
            self._fs.pipe_file(path, data, mode="create")  # atomic on S3; elsewhere it depends on the library
            return
        temporary_file = Path(f"{path}.{uuid4()}.tmp")
        try:
            temporary_file.write_bytes(data)
            os.link(temporary_file, path)
        finally:
            temporary_file.unlink(missing_ok=True)

    def finish(self, plan: Plan, files: list[dict[str, object]]) -> None:
        """Write the done file of a plan atomically. It contains the name, rows and bytes of each exported file."""
        body = {"version": VERSION, "number": plan.number, "files": files}
        with tempfile.NamedTemporaryFile(prefix="stratalog-export-") as file:
            file.write(json.dumps(body).encode() + b"\n")
            file.flush()
            self._target.put(file.name, posixpath.join(FOLDER, _name(plan.number, "done")))

    def completed_runs(self, *, after: int) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield (number, files) of each completed run with a number above ``after``, in ascending order.

        ``files`` maps the names of files to sizes in bytes. The destination must contain a plan.
        """
        for path in sorted(str(path) for path in self._fs.ls(self._folder, detail=False)):
            name = posixpath.basename(path)
            if name.endswith(".done.json") and int(name.partition(".")[0]) > after:
                body = json.loads(self._fs.cat_file(path))
                yield body["number"], {file["name"]: file["bytes"] for file in body["files"]}

    def address(self, name: str) -> str:
        """Return the URL of the file ``name`` below the destination. Other programs can use the URL."""
        return str(self._fs.unstrip_protocol(posixpath.join(self._root, name)))

    def open(self, name: str) -> Any:
        """Open the file ``name`` below the destination for reading bytes, and return fsspec's file object."""
        return self._fs.open(posixpath.join(self._root, name), "rb")

    def check(self, plan: Plan, style: Mapping[str, object], topic_ids: Mapping[str, str]) -> None:
        """Raise ConfigError if a new run does not match the last plan.

        The run matches if its ``style`` has the same values as the plan, and no topic of the plan was deleted and
        created again.
        """
        for name in style:
            if plan.style.get(name) != style[name]:
                raise ConfigError(
                    f"{self.url} was exported with {name}={plan.style.get(name)!r}, not {style[name]!r}: use the same "
                    "value, or another destination"
                )
        for topic, topic_id in topic_ids.items():
            if plan.topic_ids.get(topic, topic_id) != topic_id:
                raise ConfigError(f"topic {topic} was deleted and created again after it was exported to {self.url}")


def _name(number: int, kind: str) -> str:
    return f"{number:020}.{kind}.json"
