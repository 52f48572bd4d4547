"""Extra indexes of closed segments, and reads of the records of one key that use these indexes."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from extra_indexes import ExtraPlugin, SetReader
from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError, DiskFullError, PluginError, SegmentGoneError, UnknownComponentError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.messages.control import ControlType
from stratalog.model.names import DELETED_SUFFIX, EXTRA_SUFFIX, LOG_SUFFIX
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.testing.faults import FaultyVfs
from stratalog.testing.power_loss import Image, PowerLossVfs

TOPIC = TopicConfig(index_extra=("keyset",), file_delete_delay_ms=0)


@pytest.fixture
def plugin() -> ExtraPlugin:
    return ExtraPlugin()


@pytest.fixture
def extra_bed(tmp_path: Path, plugin: ExtraPlugin) -> Iterator[LogBed]:
    with LogBed(tmp_path / "data", Registry.load([plugin]), TOPIC, files_port=FaultyVfs()) as bed:
        yield bed


def fill(log: Log, *segments: str) -> None:
    """Append closed segments. Each letter is a record with that letter as its key."""
    for keys in segments:
        log.append([Record(key=key.encode(), value=key.upper().encode() * 9000, timestamp_ms=1) for key in keys])
        log.roll()


def known(log: LogReader, name: str = "keyset") -> list[str | None]:
    """Return the items in the index of each segment, the active one last. An item is None without an index."""
    items = []
    for entry in log.extra_index(name):
        assert entry.reader is None or isinstance(entry.reader, SetReader)
        items.append(None if entry.reader is None else b"".join(sorted(entry.reader.items)).decode())
    return items


def offsets_of(
    log: LogReader, key: str, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted"
) -> list[int]:
    return [record.offset for record in log.records_with_key(key.encode(), start, end, isolation)]


def read_logs(bed: LogBed) -> set[str]:
    """Return the base offsets of the ``.log`` files that were read since the last call."""
    assert isinstance(bed.files_port, FaultyVfs)
    names = {name for _, name in bed.files_port.names("read") if name.endswith(LOG_SUFFIX)}
    bed.files_port.done.clear()
    return {name.removesuffix(LOG_SUFFIX).lstrip("0") or "0" for name in names}


# --- building --------------------------------------------------------------------------------------------------------


def test_closed_segments_get_theirs_and_the_active_one_none(extra_bed: LogBed) -> None:
    log = extra_bed.open()
    fill(log, "abc", "cd")
    log.append([Record(key=b"z", value=b"", timestamp_ms=1)])
    assert known(log) == [None, None, None]
    result = log.maintenance.make_extra_indexes()
    assert (result.segments, result.removed) == (2, 0)
    assert result.size_bytes == sum(len(data) for name, data in extra_bed.contents().items() if EXTRA_SUFFIX in name)
    assert known(log) == ["abc", "cd", None]
    assert log.maintenance.make_extra_indexes().segments == 0


def test_appends_and_rolls_query_no_index(extra_bed: LogBed, plugin: ExtraPlugin) -> None:
    log = extra_bed.open()
    fill(log, "abc", "cd")
    assert (plugin.calls.builders, plugin.calls.records) == (0, 0)
    log.maintenance.make_extra_indexes()
    assert (plugin.calls.builders, plugin.calls.records) == (2, 5)


def test_a_topic_may_have_any_number(extra_bed: LogBed, plugin: ExtraPlugin) -> None:
    """One pass over a segment builds all its indexes. A later index does not rebuild existing ones."""
    extra_bed.topic = TopicConfig(index_extra=("valueset",))
    log = extra_bed.open()
    fill(log, "ab")
    log.maintenance.make_extra_indexes()
    log.maintenance.configure(TOPIC, extra_bed.host.components(TopicConfig(index_extra=("keyset", "valueset"))))
    before = plugin.calls.builders
    assert known(log, "valueset") == ["A" * 9000 + "B" * 9000, None]
    assert log.maintenance.make_extra_indexes().segments == 1
    assert plugin.calls.builders == before + 1
    assert known(log) == ["ab", None]
    assert known(log, "valueset") == ["A" * 9000 + "B" * 9000, None]


def test_an_index_that_is_not_configured_does_not_exist(extra_bed: LogBed) -> None:
    log = extra_bed.open()
    with pytest.raises(UnknownComponentError, match=r"t-0 has no extra index 'valueset', only: keyset"):
        list(log.extra_index("valueset"))
    with pytest.raises(UnknownComponentError, match="no extra index 'nobody' is installed"):
        extra_bed.host.components(TopicConfig(index_extra=("nobody",)))


def test_a_segment_that_is_removed_during_the_iteration_has_none(extra_bed: LogBed) -> None:
    """The iteration once failed if compaction or retention removed one of the segments."""
    log = extra_bed.open()
    fill(log, "ab", "cd", "ef")
    log.maintenance.make_extra_indexes()
    entries = log.extra_index("keyset")
    first = next(entries)
    assert first.reader is not None
    log.maintenance.raise_log_start(4)
    assert log.maintenance.evict(4)
    assert [(entry.base_offset, entry.reader is None) for entry in entries] == [(2, True), (4, False), (6, True)]
    log.close()
    with pytest.raises(SegmentGoneError):
        next(log.extra_index("keyset"))


def test_unneeded_files_are_deleted(extra_bed: LogBed) -> None:
    """Examples are indexes of segments that Kafka deleted, and all indexes once the topic lists none."""
    log = extra_bed.open()
    fill(log, "ab", "cd")
    log.maintenance.make_extra_indexes()
    extra_bed.close()
    for stray in (100, 4):  # a base offset of no segment, and the base offset of the active segment
        extra_bed.path(stray, EXTRA_SUFFIX).write_bytes(b"left behind")
    log = extra_bed.open()
    assert log.maintenance.make_extra_indexes().removed == 2
    assert known(log) == ["ab", "cd", None]
    config = TopicConfig()
    log.maintenance.configure(config, extra_bed.host.components(config))
    assert log.maintenance.make_extra_indexes().removed == 2
    assert not any(EXTRA_SUFFIX in name for name in extra_bed.names())
    assert log.maintenance.make_extra_indexes().removed == 0


def test_another_version_is_rebuilt(extra_bed: LogBed, tmp_path: Path) -> None:
    log = extra_bed.open()
    fill(log, "ab")
    log.maintenance.make_extra_indexes()
    extra_bed.close()
    with LogBed(tmp_path / "data", Registry.load([ExtraPlugin(version=2)]), TOPIC) as newer:
        log = newer.open()
        assert known(log) == [None, None]
        assert log.maintenance.make_extra_indexes().segments == 1
        assert known(log) == ["ab", None]


def test_markers_are_no_records_and_aborted_ones_are(extra_bed: LogBed) -> None:
    extra_bed.write_segment(
        0,
        [
            extra_bed.batch(0, [Record(key=b"a", timestamp_ms=1)], producer=(7, 0, 0), transactional=True),
            extra_bed.marker(1, 7, ControlType.ABORT),
            extra_bed.batch(2, [Record(key=b"b", timestamp_ms=1)]),
        ],
    )
    log = extra_bed.open(clean=False)
    log.roll()
    log.maintenance.make_extra_indexes()
    assert known(log) == ["ab", None]
    assert offsets_of(log, "a") == [0]
    assert offsets_of(log, "a", isolation="read_committed") == []
    assert offsets_of(log, "b", isolation="read_committed") == [2]


@pytest.mark.parametrize(("magic", "codec"), [(0, None), (0, "gzip"), (1, "snappy"), (2, "zstd")])
def test_segments_of_every_format_have_them(extra_bed: LogBed, magic: int, codec: str | None) -> None:
    records = [Record(key=b"k%d" % number, value=b"v", timestamp_ms=1) for number in range(20)]
    extra_bed.write_segment(0, [extra_bed.batch(0, records, magic=magic, codec=codec)])
    log = extra_bed.open(clean=False)
    log.roll()
    log.maintenance.make_extra_indexes()
    assert [offsets_of(log, f"k{number}") for number in range(21)] == [*([number] for number in range(20)), []]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_only_segments_that_may_hold_the_key_are_read(extra_bed: LogBed) -> None:
    log = extra_bed.open()
    fill(log, "ab", "cd", "ce", "fg")
    log.maintenance.make_extra_indexes()
    assert offsets_of(log, "c") == [2, 4]  # the first search also reads the segments, to compare the indexes with them
    read_logs(extra_bed)
    assert offsets_of(log, "c") == [2, 4]
    assert read_logs(extra_bed) == {"2", "4"}
    assert offsets_of(log, "x") == []
    assert read_logs(extra_bed) == set()
    assert offsets_of(log, "c", start=3) == [4]
    assert offsets_of(log, "c", start=2, end=4) == [2]
    assert [record.value for record in log.records_with_key(b"g")] == [b"G" * 9000]


def test_a_key_is_bytes(extra_bed: LogBed) -> None:
    """A key of another type would equal no key. Each index would then exclude every segment."""
    log = extra_bed.open()
    with pytest.raises(TypeError, match="must be bytes, not"):
        log.records_with_key("a")  # type: ignore[arg-type]  # a str, as who does not check types may give


def test_without_an_index_every_segment_is_read(extra_bed: LogBed) -> None:
    log = extra_bed.open()
    fill(log, "ab", "cd", "ce")
    read_logs(extra_bed)
    assert offsets_of(log, "c") == [2, 4]
    assert read_logs(extra_bed) == {"0", "2", "4"}


def test_a_reader_uses_the_existing_indexes(extra_bed: LogBed, tmp_path: Path, installed: Registry) -> None:
    """A reader ignores the topic's list of indexes. It uses an index even if the plugin has no builder for it."""
    log = extra_bed.open()
    fill(log, "ab", "cd")
    log.maintenance.make_extra_indexes()
    extra_bed.close()
    reader = extra_bed.open_reader()
    assert (known(reader), offsets_of(reader, "c")) == (["ab", "cd", None], [2])
    with LogBed(tmp_path / "data", installed) as stranger:
        assert offsets_of(stranger.open_reader(), "c") == [2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.long
def test_the_answer_is_right_after_any_change_of_the_index_files(extra_bed: LogBed, seed: int) -> None:
    """Files are truncated, changed, emptied, replaced by another segment's file, or by an older one."""
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    log = extra_bed.open()
    fill(log, *("".join(chance.choices("abcdefgh", k=4)) for _ in range(6)))
    log.maintenance.make_extra_indexes()
    expected = {key: [record.offset for record in log.records() if record.key == key.encode()] for key in "abcdefghx"}
    extra_bed.close()
    originals = extra_bed.contents()
    names = [name for name in originals if name.endswith(EXTRA_SUFFIX)]
    for _ in range(25):
        contents = dict(originals)
        for name in chance.sample(names, k=3):
            data = bytearray(originals[name])
            damage = chance.randrange(5)
            if damage == 0:
                del data[chance.randrange(len(data)) :]
            elif damage == 1:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            elif damage == 2:
                data = bytearray(originals[chance.choice(names)])
            elif damage == 3:
                data = bytearray(chance.randbytes(len(data)))
            else:
                data *= 2
            contents[name] = bytes(data)
        extra_bed.write(contents)
        log = extra_bed.open()
        assert {key: offsets_of(log, key) for key in expected} == expected
        log.maintenance.make_extra_indexes()  # rebuild the indexes that could not be read
        assert None not in known(log)[:-1]
        assert {key: offsets_of(log, key) for key in expected} == expected
        extra_bed.close()


def test_an_index_of_a_truncated_segment_is_ignored(extra_bed: LogBed) -> None:
    """Records that were written after a truncation are found, although the file describes the earlier segment."""
    log = extra_bed.open()
    for key in "abc":
        log.append([Record(key=key.encode(), value=b"", timestamp_ms=1)])
    log.roll()
    log.maintenance.make_extra_indexes()
    assert offsets_of(log, "x") == []
    log.truncate_to(1)
    assert not any(EXTRA_SUFFIX in name for name in extra_bed.names())
    log.append([Record(key=b"x", value=b"", timestamp_ms=1), Record(key=b"y", value=b"", timestamp_ms=1)])
    assert offsets_of(log, "x") == [1]
    log.roll()
    assert offsets_of(log, "x") == [1]
    assert log.maintenance.make_extra_indexes().segments == 1
    assert known(log) == ["axy", None]
    assert (offsets_of(log, "x"), offsets_of(log, "b")) == ([1], [])


def test_extra_indexes_are_deleted_with_their_segment(extra_bed: LogBed) -> None:
    log = extra_bed.open()
    fill(log, "ab", "cd")
    log.maintenance.make_extra_indexes()
    log.delete_records(2)
    log.maintenance.evict(2)
    names = [name for name in extra_bed.names() if name.startswith("0" * 20)]
    assert not any(EXTRA_SUFFIX in name for name in names), "nor under .deleted, where nothing tells how old it is"
    assert all(name.endswith(DELETED_SUFFIX) for name in names)
    assert known(log) == ["cd", None]


def test_a_failing_extra_index_costs_a_read_of_the_segment(
    extra_bed: LogBed, plugin: ExtraPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    log = extra_bed.open()
    fill(log, "ab", "cd")
    log.maintenance.make_extra_indexes()
    for call in ("reader", "answer"):
        plugin.calls.failing = frozenset({call})
        with caplog.at_level(logging.ERROR):
            assert offsets_of(log, "c") == [2]
        assert "extra index keyset@1 of" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("answer", [None, 0, "", []])
def test_an_answer_that_is_no_bool_hides_no_record_and_is_reported_once(
    extra_bed: LogBed, plugin: ExtraPlugin, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    log = extra_bed.open()
    fill(log, "ab", "cd", "ae")
    log.maintenance.make_extra_indexes()
    plugin.calls.answer = (answer,)
    with caplog.at_level(logging.ERROR):
        assert offsets_of(log, "a") == [0, 4]
        assert offsets_of(log, "c") == [2]
    (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "extra index 'keyset' version 1 (plugin " in logged.message
    assert f"): may_hold_key returned {answer!r}, neither True nor False; " in logged.message
    (failure,) = extra_bed.components.extras.failures.values()
    assert isinstance(failure, PluginError)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (b"something else", "reader refuses the bytes that finish made"),
        (b"SET|00", "may_hold_key excludes 2 of 2 keys that the segment has"),
    ],
)
def test_an_index_that_misses_keys_of_its_segment_is_refused_and_costs_a_read(
    extra_bed: LogBed, plugin: ExtraPlugin, made: bytes, reason: str
) -> None:
    plugin.calls.made = made
    log = extra_bed.open()
    fill(log, "ab")
    with pytest.raises(PluginError, match=reason):
        log.maintenance.make_extra_indexes()
    assert (known(log), offsets_of(log, "b")) == ([None, None], [1])


def test_an_empty_index_is_not_rebuilt(extra_bed: LogBed, plugin: ExtraPlugin) -> None:
    plugin.calls.made = b""
    log = extra_bed.open()
    fill(log, "ab")
    assert log.maintenance.make_extra_indexes().segments == 1
    assert (known(log), offsets_of(log, "b")) == ([None, None], [1])
    assert log.maintenance.make_extra_indexes().segments == 0
    extra_bed.close()
    assert extra_bed.open().maintenance.make_extra_indexes().segments == 0


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["builder", "add", "finish"])
def test_a_builder_that_fails_is_named(extra_bed: LogBed, plugin: ExtraPlugin, what: str) -> None:
    log = extra_bed.open()
    fill(log, "ab")
    plugin.calls.failing = frozenset({what})
    with pytest.raises(PluginError, match=f"extra index .*keyset.*: {what} raised ZeroDivisionError: the {what} fails"):
        log.maintenance.make_extra_indexes()
    assert not any(EXTRA_SUFFIX in name for name in extra_bed.names())
    plugin.calls.failing = frozenset()
    assert log.maintenance.make_extra_indexes().segments == 1


def test_one_that_is_too_large_is_left_out(
    extra_bed: LogBed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stratalog.segment.extra_index_file.MAX_INDEX_BYTES", 10)
    log = extra_bed.open()
    fill(log, "abcdef", "a")
    with caplog.at_level(logging.WARNING):
        assert log.maintenance.make_extra_indexes().segments == 2
    assert "extra index keyset@1 of a segment is left out" in caplog.text
    assert known(log) == [None, "a", None]


def test_a_damaged_segment_has_none(extra_bed: LogBed) -> None:
    log = extra_bed.open()
    fill(log, "ab", "cd")
    extra_bed.close()
    damaged = bytearray(extra_bed.path(2).read_bytes())
    damaged[-1] ^= 1
    extra_bed.path(2).write_bytes(damaged)
    log = extra_bed.open()
    with pytest.raises(CorruptBatchError):
        log.maintenance.make_extra_indexes()
    assert known(log) == ["ab", None, None]
    with pytest.raises(CorruptBatchError):
        offsets_of(log, "c")


def test_a_full_disk_leaves_no_half_of_one(extra_bed: LogBed) -> None:
    assert isinstance(extra_bed.files_port, FaultyVfs)
    log = extra_bed.open()
    fill(log, "ab")
    extra_bed.files_port.room_bytes = 20
    with pytest.raises(DiskFullError):
        log.maintenance.make_extra_indexes()
    assert not any(EXTRA_SUFFIX in name for name in extra_bed.names())
    assert offsets_of(log, "b") == [1]
    assert log.healthy
    extra_bed.files_port.room_bytes = None
    assert log.maintenance.make_extra_indexes().segments == 1
    assert known(log) == ["ab", None]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_a_loss_of_power_leaves_no_wrong_index(tmp_path: Path, seed: int) -> None:
    """The test combines index files and segments of all states: synced, lost, truncated and written again."""
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    registry, checked = Registry.load([ExtraPlugin()]), 0
    states = set[int]()

    def recover(image: Image) -> None:
        with LogBed(tmp_path / "after", registry, TOPIC) as after:
            after.write(image)
            recovered_log = after.open(clean=False)
            for _ in range(2):
                records = list(recovered_log.records())
                for key in "abcdexyz":
                    expected = [record.offset for record in records if record.key == key.encode()]
                    assert offsets_of(recovered_log, key) == expected
                recovered_log.maintenance.make_extra_indexes()

    def look(change: str) -> None:
        nonlocal checked
        del change
        for image in files.images(chance, 1):
            state = hash(frozenset(image.items()))
            if state not in states and any(name.endswith(LOG_SUFFIX) for name in image):
                states.add(state)
                checked += 1
                recover(image)

    with LogBed(tmp_path / "data", registry, TOPIC) as bed:
        log = bed.open()
        fill(log, "ab", "cd")
        bed.close()
        files = PowerLossVfs(bed.folder, look)
        bed.files_port = files
        log = bed.open()
        log.maintenance.make_extra_indexes()
        log.truncate_to(3)
        fill(log, "xy")
        log.maintenance.make_extra_indexes()
        log.maintenance.evict(0)
        log.roll()
    assert checked > 20
