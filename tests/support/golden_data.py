"""Golden directories: log directories that real Kafka wrote, with the output of its clients and tools.

The directories come from the archives in ``tests/golden/data``. If the variable ``GOLDEN_FOLDER`` is set, they come
from that folder instead.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from dump_parser import Dump, DumpedFile, parse_dump
from stratalog import Record, TimestampType, TopicPartition
from stratalog.model.names import parse_partition_folder

ARCHIVES: Final = Path(__file__).parent.parent / "golden" / "data"
FOLDER_VARIABLE: Final = "GOLDEN_FOLDER"
ISOLATIONS: Final = ("read_uncommitted", "read_committed")
_EXPECTED_SUFFIX: Final = ".uncommitted.jsonl.gz"
_TOPIC_ID_CHARACTERS: Final = 23  # a dash, and 22 of base64
_TYPES: Final = {str(kind): kind for kind in TimestampType}


@dataclass(frozen=True, slots=True)
class Expected:
    """Contents of one log, read by a broker's client: log start, end for the isolation level, and all records."""

    log_start: int
    end: int
    records: list[Record]

    def from_offset(self, start: int) -> list[Record]:
        """Return the records at or above an offset."""
        return [record for record in self.records if record.offset >= start]


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The broker's response to a search for the first record at or after ``query_ms``; an offset of -1 means none."""

    isolation: str
    query_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class Golden:
    """One golden directory, unpacked. Tests must not write to it."""

    path: Path

    @property
    def logs(self) -> Path:
        """Return the broker's log directory."""
        return self.path / "logs"

    def partitions(self) -> list[TopicPartition]:
        """Return the names of the logs in the log directory, sorted."""
        return sorted(name for folder in self.logs.iterdir() if (name := parse_partition_folder(folder.name)))

    def copy_logs(self, target: Path, *names: TopicPartition) -> Path:
        """Copy the log directory to ``target``, and return ``target``. With ``names``, copy only these logs."""
        copied_logs = {str(name) for name in names}

        def left_out(folder: str, entries: list[str]) -> list[str]:
            return [
                entry for entry in entries if copied_logs and Path(folder, entry).is_dir() and entry not in copied_logs
            ]

        return shutil.copytree(self.logs, target, ignore=left_out)

    def expected(self, log: TopicPartition, isolation: str) -> Expected:
        """Return the records that a client read with this isolation level."""
        name = f"{log}.{isolation.removeprefix('read_')}.jsonl.gz"
        lines = gzip.decompress((self.path / "expected" / name).read_bytes()).splitlines()
        bounds = json.loads(lines[0])
        records = [_record(line, log.partition) for line in lines[1:]]
        return Expected(bounds["log_start"], bounds["high_watermark"], records)

    def dump(self, name: str) -> Dump:
        """Return the output of Kafka's dump tool."""
        return parse_dump((self.path / "dumps" / name).read_text(encoding="utf-8"))

    def dumped_files(self, name: str) -> Iterator[tuple[Path, DumpedFile]]:
        """Yield each file of a dump and the dump of this file."""
        place, _, folder = name.removesuffix(".txt").partition("-")
        for file, dumped in self.dump(name).files.items():
            if place == "remote":
                base, _, suffix = file.partition(".")
                (path,) = self.path.glob(f"remote/*/{folder}/{base}-*.{suffix}")
            else:
                path = self.logs / (folder if place == "local" else name.removesuffix(".txt")) / file
            yield path, dumped

    def listed_offsets(self, log: TopicPartition) -> list[ListedOffset]:
        """Return the queries by timestamp in ``offsets.json``, with the broker's responses."""
        answers = json.loads((self.path / "offsets.json").read_text(encoding="utf-8"))[str(log)]
        return [
            ListedOffset(isolation, query["query"], query["answer"]["offset"])
            for isolation in ISOLATIONS
            for query in answers[isolation]["by-timestamp"]
        ]

    def assemble(self, target: Path) -> Path:
        """Write a log directory with the remote and local segments of every log, as if no segment had been evicted."""
        self.copy_logs(target)
        for remote in self.path.glob("remote/*/*/*"):
            folder = target / remote.parent.name[:-_TOPIC_ID_CHARACTERS]
            file = folder / f"{remote.name.partition('-')[0]}{remote.suffix}"
            if remote.suffix == ".leader_epoch_checkpoint":
                _merge_epochs(folder / "leader-epoch-checkpoint", remote)
            elif not file.exists():
                shutil.copy(remote, file)
        return target


def _merge_epochs(checkpoint: Path, other_checkpoint: Path) -> None:
    """Add the epochs of another checkpoint. If both have an epoch, keep the smaller start offset."""
    epochs: dict[int, int] = {}
    for file in (checkpoint, other_checkpoint):
        for line in file.read_text(encoding="utf-8").splitlines()[2:]:
            epoch, start = map(int, line.split())
            epochs[epoch] = min(start, epochs.get(epoch, start))
    lines = [f"{epoch} {start}\n" for epoch, start in sorted(epochs.items())]
    checkpoint.write_text(f"0\n{len(lines)}\n{''.join(lines)}", encoding="utf-8")


def _record(line: bytes, partition: int) -> Record:
    item = json.loads(line)
    kind = TimestampType.NONE if item["timestamp_type"] is None else _TYPES[item["timestamp_type"]]
    epoch = item["leader_epoch"]
    return Record(
        offset=item["offset"],
        # the client reports 0; Kafka stores no sequence
        timestamp_ms=-1 if kind is TimestampType.NONE else item["timestamp"],
        timestamp_type=kind,
        key=_bytes(item["key"]),
        value=_bytes(item["value"]),
        headers=tuple((name, _bytes(value)) for name, value in item["headers"]),
        leader_epoch=-1 if epoch is None else epoch,
        partition=partition,
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


# --- what there is ---------------------------------------------------------------------------------------------------


@cache
def _members() -> dict[str, frozenset[str]]:
    """Return the relative paths of all files in each golden directory."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        roots = [path.parent for path in Path(folder).glob("*/logs")]
        return {
            root.name: frozenset(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
            for root in roots
        }
    members = {}
    for archive in ARCHIVES.glob("*.tar.xz"):
        with tarfile.open(archive) as tar:
            names = [entry.name.partition("/")[2] for entry in tar if entry.isfile()]
        members[archive.name.removesuffix(".tar.xz")] = frozenset(names)
    return members


def _with_folder(folder: str, *, wanted: bool) -> Iterator[str]:
    for name, members in sorted(_members().items()):
        if any(member.startswith(f"{folder}/") for member in members) is wanted:
            yield name


def plain_directories() -> list[str]:
    """Return the directories of brokers without a tier that stopped cleanly."""
    return [name for name in _with_folder("remote", wanted=False) if name in {*_with_folder("recovered", wanted=False)}]


def crashed_directories() -> list[str]:
    """Return the directories of brokers that were killed. Their folder ``recovered`` has the files after recovery."""
    return list(_with_folder("recovered", wanted=True))


def tiered_directories() -> list[str]:
    """Return the directories of brokers with a tier. Their folder ``remote`` has the tier."""
    return list(_with_folder("remote", wanted=True))


def expected_logs(*directories: str) -> list[tuple[str, TopicPartition]]:
    """Return directory and name of each log whose expected records are stored."""
    logs = []
    for directory in directories:
        for member in sorted(_members()[directory]):
            name = Path(member).name
            if member.startswith("expected/") and name.endswith(_EXPECTED_SUFFIX):
                log = parse_partition_folder(name.removesuffix(_EXPECTED_SUFFIX))
                assert log is not None
                logs.append((directory, log))
    return logs


def dumps() -> list[tuple[str, str]]:
    """Return directory and file name of each dump."""
    return [
        (directory, Path(member).name)
        for directory, members in sorted(_members().items())
        for member in sorted(members)
        if member.startswith("dumps/")
    ]


def unpack(name: str, folder: Path) -> Golden:
    """Return the golden directory of this name, and unpack it into ``folder`` if necessary."""
    parent_folder = os.environ.get(FOLDER_VARIABLE)
    if parent_folder:
        return Golden(Path(parent_folder) / name)
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
        tar.extractall(folder)  # noqa: S202 - our own archive
    return Golden(folder / name)
