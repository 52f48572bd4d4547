"""Golden directories: log directories that real Kafka wrote, with the output of its clients and tools.

They come from the archives in ``tests/golden/data``, or from the folder that the variable ``GOLDEN_FOLDER`` names,
with directories of the same kinds in it.
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
    """A broker's client's view of one log: its bounds for an isolation level, and all records."""

    log_start: int
    end: int
    records: list[Record]

    def from_offset(self, start: int) -> list[Record]:
        """The records from an offset on."""
        return [record for record in self.records if record.offset >= start]


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The broker's response to a search for the first record at or after ``query_ms``; an offset of -1 means none."""

    isolation: str
    query_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class Golden:
    """One golden directory, unpacked; not to be written to."""

    path: Path

    @property
    def logs(self) -> Path:
        """The broker's log directory."""
        return self.path / "logs"

    def partitions(self) -> list[TopicPartition]:
        """The logs in it, sorted."""
        return sorted(name for folder in self.logs.iterdir() if (name := parse_partition_folder(folder.name)))

    def copy_logs(self, target: Path, *names: TopicPartition) -> Path:
        """A copy of the log directory that may be written to; with names, of these logs and no others."""
        kept = {str(name) for name in names}

        def left_out(folder: str, entries: list[str]) -> list[str]:
            return [entry for entry in entries if kept and Path(folder, entry).is_dir() and entry not in kept]

        return shutil.copytree(self.logs, target, ignore=left_out)

    def expected(self, log: TopicPartition, isolation: str) -> Expected:
        """Return the records that a client read."""
        name = f"{log}.{isolation.removeprefix('read_')}.jsonl.gz"
        lines = gzip.decompress((self.path / "expected" / name).read_bytes()).splitlines()
        bounds = json.loads(lines[0])
        records = [_record(line, log.partition) for line in lines[1:]]
        return Expected(bounds["log_start"], bounds["high_watermark"], records)

    def dump(self, name: str) -> Dump:
        """Return the output of Kafka's dump tool."""
        return parse_dump((self.path / "dumps" / name).read_text(encoding="utf-8"))

    def dumped_files(self, name: str) -> Iterator[tuple[Path, DumpedFile]]:
        """Return the files that a dump describes, each with its description."""
        place, _, folder = name.removesuffix(".txt").partition("-")
        for file, dumped in self.dump(name).files.items():
            if place == "remote":
                base, _, suffix = file.partition(".")
                (path,) = self.path.glob(f"remote/*/{folder}/{base}-*.{suffix}")
            else:
                path = self.logs / (folder if place == "local" else name.removesuffix(".txt")) / file
            yield path, dumped

    def listed_offsets(self, log: TopicPartition) -> list[ListedOffset]:
        """The queries by timestamp in ``offsets.json``."""
        answers = json.loads((self.path / "offsets.json").read_text(encoding="utf-8"))[str(log)]
        return [
            ListedOffset(isolation, asked["query"], asked["answer"]["offset"])
            for isolation in ISOLATIONS
            for asked in answers[isolation]["by-timestamp"]
        ]

    def assemble(self, target: Path) -> Path:
        """One log directory with the remote and the local segments of every log, as if nothing had been evicted."""
        self.copy_logs(target)
        for remote in self.path.glob("remote/*/*/*"):
            folder = target / remote.parent.name[:-_TOPIC_ID_CHARACTERS]
            file = folder / f"{remote.name.partition('-')[0]}{remote.suffix}"
            if remote.suffix == ".leader_epoch_checkpoint":
                _merge_epochs(folder / "leader-epoch-checkpoint", remote)
            elif not file.exists():
                shutil.copy(remote, file)
        return target


def _merge_epochs(checkpoint: Path, other: Path) -> None:
    """Add the epochs of another checkpoint; the smaller start of an epoch that is in both."""
    epochs: dict[int, int] = {}
    for file in (checkpoint, other):
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
        timestamp_ms=-1 if kind is TimestampType.NONE else item["timestamp"],  # the client shows 0, Kafka stores none
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
    """The names of all files below each golden directory, relative to it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        roots = [path.parent for path in Path(folder).glob("*/logs")]
        return {
            root.name: frozenset(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
            for root in roots
        }
    found = {}
    for archive in ARCHIVES.glob("*.tar.xz"):
        with tarfile.open(archive) as tar:
            names = [entry.name.partition("/")[2] for entry in tar if entry.isfile()]
        found[archive.name.removesuffix(".tar.xz")] = frozenset(names)
    return found


def _with_folder(folder: str, *, wanted: bool) -> Iterator[str]:
    for name, members in sorted(_members().items()):
        if any(member.startswith(f"{folder}/") for member in members) is wanted:
            yield name


def plain_directories() -> list[str]:
    """Directories of a broker that stopped in order and knew no tier."""
    return [name for name in _with_folder("remote", wanted=False) if name in {*_with_folder("recovered", wanted=False)}]


def crashed_directories() -> list[str]:
    """Directories of a broker that was killed; ``recovered`` is what Kafka made of them."""
    return list(_with_folder("recovered", wanted=True))


def tiered_directories() -> list[str]:
    """Directories of a broker with a tier, ``remote``."""
    return list(_with_folder("remote", wanted=True))


def expected_logs(*directories: str) -> list[tuple[str, TopicPartition]]:
    """The logs of these directories of which is known what a client read."""
    found = []
    for directory in directories:
        for member in sorted(_members()[directory]):
            name = Path(member).name
            if member.startswith("expected/") and name.endswith(_EXPECTED_SUFFIX):
                log = parse_partition_folder(name.removesuffix(_EXPECTED_SUFFIX))
                assert log is not None
                found.append((directory, log))
    return found


def dumps() -> list[tuple[str, str]]:
    """All dumps: directory and file name."""
    return [
        (directory, Path(member).name)
        for directory, members in sorted(_members().items())
        for member in sorted(members)
        if member.startswith("dumps/")
    ]


def unpack(name: str, folder: Path) -> Golden:
    """The golden directory of this name, below ``folder`` if it has to be unpacked."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Golden(Path(given) / name)
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python before 3.11.4 does not have
        tar.extractall(folder)  # noqa: S202 - our own archive
    return Golden(folder / name)
