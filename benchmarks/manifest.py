"""A tier with very many segments: bytes that a commit writes, and time and memory of the first read.

    python benchmarks/manifest.py [--quick] [--json]

The tier is a folder with a partition of 100,000 segments; 2,000 with --quick. The bytes of a commit are the mean over
256 commits of the bytes of root and pages. The first read opens a reader and the log in a separate process. The memory
of the first read is the growth of that process at its peak.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from harness import Machine, Options, Reporter, Verdict, parse_options, peak_of
from stratalog import open_reader
from stratalog.config.settings_sources import read_settings
from stratalog.env import Env
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.producers.snapshot import encode_snapshot
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.commit.committer import Committer
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.head import HeadFinder
from stratalog.tier.manifest.pages import PageCache, Pages
from stratalog.tier.manifest.root import PAGE_ITEMS, Change, ChangeKind, Root
from stratalog.tier.store.object_keys import log_prefix
from stratalog.tier.store.store import TierStore

_LOG: Final = TopicPartition("many", 0)
_TOPIC_ID: Final = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
_PREFIX: Final = log_prefix(_LOG, _TOPIC_ID)
_LIMIT_BYTES: Final = 64 << 20
_SIZES: Final = (100, 1_000, 10_000, 100_000)
_QUICK_SIZES: Final = (100, 2_000)
_OFFSETS: Final = 1_000  # number of offsets in a segment
ATTACH: Final = "manifest/attach"
ATTACH_CASES: Final = tuple(f"{ATTACH}/{case}" for case in ("requests", "cpu", "memory"))
_COMMITS: Final = "a commit at 100,000 segments writes what one at 1,000 does"
_ATTACH: Final = "attach to a partition with 100,000 segments"
_GROWTH: Final = 2.0
_REQUESTS: Final = 5.0
_CPU_S: Final = 1.0
_PEAK_MIB: Final = 64.0


def main(arguments: list[str] | None = None) -> int:
    """Measure, and return 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter = Reporter(as_json=options.json)
    reporter.machine(Machine.now(("stratalog", "fsspec")))
    with tempfile.TemporaryDirectory(prefix="manifest-benchmark-") as scratch:
        reporter.verdicts(_verdicts(Path(scratch), options))
    return 0


def _verdicts(scratch: Path, options: Options) -> list[Verdict]:
    sizes = _QUICK_SIZES if options.quick else _SIZES
    bytes_by_size = {size: _bytes_of_a_commit(scratch / str(size), size) for size in sizes}
    text = ", ".join(f"{size:,}: {count / 1024:.0f} KiB" for size, count in bytes_by_size.items())
    growth = bytes_by_size[sizes[-1]] / bytes_by_size[sizes[1]]
    verdicts = [
        Verdict(
            _COMMITS,
            "manifest/commit",
            f"bytes of a commit, {text}",
            f"at most {_GROWTH:g} x",
            growth,
            growth <= _GROWTH,
        )
    ]
    return [verdict for verdict in [*verdicts, *_attaching(scratch / str(sizes[-1]))] if options.wants(verdict.case)]


def attach_verdicts(folder: Path, options: Options) -> list[Verdict]:
    """Make a tier with very many segments in a new folder, and measure the start of reading from it."""
    _bytes_of_a_commit(folder, (_QUICK_SIZES if options.quick else _SIZES)[-1])
    return [verdict for verdict in _attaching(folder) if options.wants(verdict.case)]


def _attaching(folder: Path) -> list[Verdict]:
    command = [sys.executable, __file__, "--child", folder.as_uri()]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = (
        ("requests", f"{figures['requests']} requests, {figures['oldest']} more for the list at its oldest offset",
         figures["requests"], _REQUESTS, "requests"),
        ("cpu", f"{figures['cpu_s']:.3f} s of processor time", figures["cpu_s"], _CPU_S, "s"),
        ("memory", f"{figures['peak_mib']:.1f} MiB", figures["peak_mib"], _PEAK_MIB, "MiB"),
    )  # fmt: skip
    return [
        Verdict(_ATTACH, f"{ATTACH}/{case}", measured, f"at most {bound:g} {unit}", figure, figure <= bound)
        for case, measured, figure, bound, unit in rows
    ]


class _Writer:
    """Commits manifest entries that look like those of the default layout. Only the last segment has an object."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._env = folder, Env(chance=random.Random(1))  # noqa: S311 - the same in every run
        self._host = open_host(read_settings(None, {}), (), self._env)
        self.tier = open_tier(self._host, folder.as_uri(), None, read_only=False)
        store: TierStore = self.tier._store  # noqa: SLF001 - commits are made round the log, so that none uploads
        authenticity = Authenticity(self._host.layouts)
        finder = HeadFinder(
            store, _LOG, _TOPIC_ID, self._env.clock, limit_bytes=_LIMIT_BYTES, authenticity=authenticity
        )
        pages = Pages(store, _LOG, _TOPIC_ID, PageCache(), limit_bytes=_LIMIT_BYTES)
        self._committer = Committer(store, finder, pages, self._env, limit_bytes=_LIMIT_BYTES)

    def add(self, first: int, count: int) -> None:
        """Commit ``count`` segments, from number ``first`` on."""
        entries = tuple(_entry(number) for number in range(first, first + count))

        def decide(root: Root | None) -> Change:
            del root
            end = entries[-1].info.end_offset
            return Change(kind=ChangeKind.OFFLOAD, reason="a benchmark", added=entries, log_start=0, high_watermark=end)

        self._committer.commit(0, decide)

    def close(self, last: int) -> None:
        """Store the only object that a reader of the log end needs: the producer snapshot of the segment ``last``."""
        place = _entry(last).slices[FileKind.SNAPSHOT]
        path = self._folder / place.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(place.position) + encode_snapshot([]))
        self.tier.close()
        self._host.close()


def _bytes_of_a_commit(folder: Path, segments: int) -> float:
    writer = _Writer(folder)
    writer.add(0, segments)
    before = writer.tier.metrics().store
    for number in range(segments, segments + PAGE_ITEMS):
        writer.add(number, 1)
    spent = writer.tier.metrics().store - before
    writer.close(segments + PAGE_ITEMS - 1)
    return (spent.creates.moved_bytes + spent.puts.moved_bytes) / PAGE_ITEMS


def _entry(number: int) -> StoredSegment:
    base = number * _OFFSETS
    info = SegmentInfo(
        _LOG, _TOPIC_ID, base, base + _OFFSETS, 1 << 30, 1_700_000_000_000 + number, 0, (EpochEntry(0, base),)
    )
    key = f"{_PREFIX}segments/{base:020d}-0-{number:032x}.seg"
    snapshot = encode_snapshot([])
    slices = {kind: ObjectSlice(key, place << 10, 1 << 10) for place, kind in enumerate(FileKind)}
    slices[FileKind.SNAPSHOT] = ObjectSlice(key, slices[FileKind.SNAPSHOT].position, len(snapshot))
    digests = {str(kind): "a" * 64 for kind in FileKind if kind is not FileKind.LOG}
    digests[str(FileKind.SNAPSHOT)] = hashlib.sha256(snapshot).hexdigest()
    return StoredSegment(info, "single@1", slices, "b" * 64, (), {"sha256": digests})


def _child(uri: str) -> None:
    """Measure the first read, and print the figures as JSON."""
    with tempfile.TemporaryDirectory() as folder, open_reader(Path(folder).as_uri()):
        pass  # imports, and other work that a process does only once
    peak = peak_of(lambda: _attach(uri))  # not from getrusage, whose peak is at least that of the parent process
    sys.stdout.write(json.dumps({**peak.result, "peak_mib": peak.bytes / (1 << 20)}))


def _attach(uri: str) -> dict[str, float]:
    began = time.process_time()
    with open_reader(uri) as reader:
        log = reader.log(_LOG.topic, _LOG.partition)
        assert log.offsets().log_start == 0
        cpu_s = time.process_time() - began
        assert reader.tier is not None
        attached = reader.tier.metrics().store.requests
        oldest = log.view().segment_at(0)
        assert oldest is not None
        assert oldest.base_offset == 0
        return {
            "requests": attached,
            "oldest": reader.tier.metrics().store.requests - attached,
            "cpu_s": cpu_s,
        }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2])
    else:
        sys.exit(main())
