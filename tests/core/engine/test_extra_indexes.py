"""Extra indexes: built by a duty, rewritten by compaction, and used in a tier."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from extra_indexes import ExtraPlugin, SetReader
from sim_objects import SimBucket, SimRequest
from sim_tier import URI, SimTier
from stratalog import Engine, Record, open_engine, open_reader
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import PluginError, UnknownComponentError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.names import EXTRA_SUFFIX
from stratalog.model.segment_info import FileKind
from stratalog.spi import StoredSegment
from stratalog.tier.read.remote_segment import RemoteSegment
from tiered_logs import remote_of

VALUE = b"." * 5000
CONFIG = {"index.extra": "keyset", "file.delete.delay.ms": 0, "remote.storage.enable": True}
COMPACTED = {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


class Bed:
    """Engines over one folder and one bucket. ``asked`` has the requests for objects of segments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.plugin = folder, ManualClock(), ExtraPlugin()
        self.sim = SimTier(SimBucket(self.clock), self._note)
        self.asked: list[SimRequest] = []

    def _note(self, request: SimRequest) -> None:
        if "/segments/" in request.key:
            self.asked.append(request)

    def engine(self, *, plugins: Sequence[object] | None = None, tier: str | None = URI) -> Engine:
        engine_plugins = [self.plugin, self.sim] if plugins is None else plugins
        return open_engine(self.folder, tier=tier, plugins=engine_plugins, env=Env(clock=self.clock))

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "t-0").iterdir() if EXTRA_SUFFIX in path.name)


@pytest.fixture
def place(tmp_path: Path) -> Bed:
    return Bed(tmp_path / "data")


def fill(log: Log, *segments: str) -> None:
    for keys in segments:
        log.append([Record(key=key.encode(), value=VALUE) for key in keys])
        log.roll()


def filled(engine: Engine, *segments: str, config: dict[str, object] | None = None) -> Log:
    engine.create_topic("t", config=CONFIG if config is None else config)
    log = engine.log("t", 0)
    fill(log, *segments)
    return log


def known(log: LogReader) -> Iterator[str | None]:
    for entry in log.extra_index("keyset"):
        assert entry.reader is None or isinstance(entry.reader, SetReader)
        yield None if entry.reader is None else b"".join(sorted(entry.reader.items)).decode()


def stored(log: LogReader) -> list[StoredSegment]:
    """Return the manifest's entries of the segments in the tier."""
    segments = list(remote_of(log).segments)
    return [segment.entry for segment in segments if isinstance(segment, RemoteSegment)]


def offsets_of(log: LogReader, key: str) -> list[int]:
    return [record.offset for record in log.records_with_key(key.encode())]


def test_a_duty_builds_extra_indexes(place: Bed) -> None:
    with place.engine() as engine:
        log = filled(engine, "ab", "cd")
        engine.run_duties()
        place.clock.advance_ms(15_000)
        engine.run_duties()
        assert list(known(log)) == ["ab", "cd", None]
        fill(log, "ef")
        engine.run_duties()
        assert list(known(log)) == ["ab", "cd", None, None]
        place.clock.advance_ms(15_000)
        engine.run_duties()
        assert list(known(log)) == ["ab", "cd", "ef", None]


def test_extra_indexes_of_an_open_topic_can_be_added_and_removed(place: Bed) -> None:
    with place.engine() as engine:
        log = filled(engine, "ab", config={})
        assert [result.segments for result in engine.make_extra_indexes()] == [0]
        engine.alter_topic("t", {"index.extra": "keyset,valueset"})
        assert [result.segments for result in engine.make_extra_indexes()] == [1]
        assert list(known(log)) == ["ab", None]
        engine.alter_topic("t", {"index.extra": ""})
        assert [result.removed for result in engine.make_extra_indexes()] == [1]
        assert place.names == []
        with pytest.raises(UnknownComponentError, match="nobody"):
            engine.alter_topic("t", {"index.extra": "nobody"})


def test_a_log_that_fails_does_not_stop_the_others(place: Bed) -> None:
    with place.engine() as engine:
        filled(engine, "ab")
        engine.create_topic("other", config={"index.extra": "valueset"})
        fill(engine.log("other", 0), "ab")
        place.plugin.calls.failing_index = "valueset"
        with pytest.raises(PluginError, match="extra index 'valueset' version 1"):
            engine.make_extra_indexes()
        assert list(known(engine.log("t", 0))) == ["ab", None]


def test_compaction_rewrites_segments_and_their_indexes(place: Bed) -> None:
    with place.engine(tier=None, plugins=[place.plugin]) as engine:
        log = filled(engine, "ab", "bc", "cd", config={**COMPACTED, "remote.storage.enable": False})
        engine.make_extra_indexes()
        engine.run_cleaner()
        for key, expected in {"a": [0], "b": [2], "c": [4], "d": [5]}.items():
            assert offsets_of(log, key) == expected
        engine.make_extra_indexes()
        indexed_keys = list(known(log))
        assert None not in indexed_keys[:-1]
        assert "".join(keys or "" for keys in indexed_keys) == "abcd"
        assert len(place.names) == len(indexed_keys) - 1


def test_extra_indexes_go_to_the_tier_and_skip_segments_there(place: Bed) -> None:
    """A search reads the indexes of each segment with one request, and then only the segment with the key."""
    with place.engine() as engine:
        log = filled(engine, "ab", "cd", "ce", "fg")
        engine.make_extra_indexes()
        before = place.plugin.calls.builders
        engine.offload()
        assert place.plugin.calls.builders == before
        slices = [entry.slices for entry in stored(log)]
    with open_reader(URI, plugins=[place.plugin, place.sim], env=Env(clock=place.clock)) as reader:
        reader_log = reader.log("t", 0)
        place.asked.clear()
        assert list(known(reader_log)) == ["ab", "cd", "ce", "fg"]
        assert [(request.kind, request.key) for request in place.asked] == [
            ("read", files[FileKind.EXTRA].key) for files in slices
        ]
        place.asked.clear()
        assert offsets_of(reader_log, "x") == []
        assert place.asked == []
        assert offsets_of(reader_log, "e") == [5]
        assert {request.key for request in place.asked} == {slices[2][FileKind.LOG].key}


def test_an_index_that_is_missing_locally_is_built_for_the_tier(place: Bed) -> None:
    with place.engine() as engine:
        filled(engine, "ab", "cd")
        engine.offload()
        assert place.names == []
    with open_reader(URI, plugins=[place.plugin, place.sim], env=Env(clock=place.clock)) as reader:
        assert list(known(reader.log("t", 0))) == ["ab", "cd"]


def test_a_tier_is_read_without_the_plugin(place: Bed) -> None:
    with place.engine() as engine:
        filled(engine, "ab", "cd")
        engine.offload()
    with open_reader(URI, plugins=[place.sim], env=Env(clock=place.clock)) as reader:
        log = reader.log("t", 0)
        assert (offsets_of(log, "c"), offsets_of(log, "x")) == ([2], [])
        with pytest.raises(UnknownComponentError, match="no extra index 'keyset', only: bloom"):
            list(log.extra_index("keyset"))


def test_a_name_that_two_plugins_use_is_refused(place: Bed) -> None:
    with place.engine(tier=None, plugins=[place.plugin]) as engine:
        log = filled(engine, "ab", "cd", config={"index.extra": "keyset"})
        engine.make_extra_indexes()
        assert offsets_of(log, "c") == [2]
    with open_reader(place.folder, plugins=[place.plugin, ExtraPlugin()]) as reader:
        reader_log = reader.log("t", 0)
        assert (offsets_of(reader_log, "c"), offsets_of(reader_log, "x")) == ([2], [])
        with pytest.raises(UnknownComponentError, match="only: bloom"):
            list(reader_log.extra_index("keyset"))


def test_a_builder_that_fails_keeps_nothing_from_the_tier(place: Bed, caplog: pytest.LogCaptureFixture) -> None:
    with place.engine() as engine, caplog.at_level(logging.WARNING):
        log = filled(engine, "ab")
        place.plugin.calls.failing = frozenset({"add"})
        (result,) = engine.offload()
        assert result.segments == 1
        assert "is offloaded without extra indexes" in caplog.text
        assert FileKind.EXTRA not in stored(log)[0].slices
        place.plugin.calls.failing = frozenset()


def test_compaction_in_the_tier_rebuilds_extra_indexes(place: Bed) -> None:
    with place.engine() as engine:
        log = filled(engine, "ab", "bc", "cd", config=COMPACTED)
        engine.offload()
        engine.run_cleaner()
        assert all(FileKind.EXTRA in entry.slices for entry in stored(log))
    with open_reader(URI, plugins=[place.plugin, place.sim], env=Env(clock=place.clock)) as reader:
        tiered = reader.log("t", 0)
        assert "".join(keys or "" for keys in known(tiered)) == "abcd"
        assert [offsets_of(tiered, key) for key in "abcdx"] == [[0], [2], [4], [5], []]


def test_a_damaged_extra_index_in_the_tier_costs_a_read_of_the_segment(place: Bed) -> None:
    with place.engine() as engine:
        log = filled(engine, "ab", "cd")
        engine.offload()
        where = stored(log)[1].slices[FileKind.EXTRA]
    data = bytearray(place.sim.bucket.objects[where.key][0])
    data[where.position + 3] ^= 1
    place.sim.bucket.write(where.key, bytes(data))
    with open_reader(URI, plugins=[place.plugin, place.sim], env=Env(clock=place.clock)) as reader:
        tiered = reader.log("t", 0)
        assert list(known(tiered)) == ["ab", None]
        assert (offsets_of(tiered, "c"), offsets_of(tiered, "x")) == ([2], [])
