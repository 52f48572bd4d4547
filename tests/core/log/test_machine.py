"""Random operations on a log, crashes included, compared with a list of records."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.registry.registry import Registry

SUFFIXES = (".index", ".timeindex", ".snapshot")
codecs = st.sampled_from([None, "gzip", "lz4"])


class LogMachine(RuleBasedStateMachine):
    """State machine of random operations on a log.

    ``model`` has the records by offset; the records below ``durable`` must survive. None is an offset without a record,
    as in a log that a leader compacted. ``begins`` has the base offsets of batches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.bed = LogBed(Path(self.folder.name) / "data", Registry.load())
        self.model: list[tuple[int, bytes] | None] = []  # timestamp, value
        self.begins: set[int] = set()
        self.start = self.durable = self.serial = 0
        self.log: Log

    @initialize(
        version=st.sampled_from([0, 1, 2]),
        codec=st.sampled_from(["producer", "gzip", "uncompressed"]),
        segment_bytes=st.sampled_from([300, 700]),
        interval_bytes=st.sampled_from([0, 150, 4096]),
    )
    def begin(self, version: int, codec: str, segment_bytes: int, interval_bytes: int) -> None:
        self.bed.topic = TopicConfig(
            record_version=version,
            compression_type=codec,
            segment_bytes=segment_bytes,
            index_interval_bytes=interval_bytes,
        )
        self.log = self.bed.open()

    # --- operations ----------------------------------------------------------------------------------------------

    @rule(stamps=st.lists(st.integers(0, 50), min_size=1, max_size=5), durable=st.booleans())
    def append(self, stamps: list[int], durable: bool) -> None:  # noqa: FBT001 - hypothesis names its arguments
        base, stamped_values = len(self.model), self.values(stamps)
        self.as_leader()
        result = self.log.append(
            [Record(timestamp_ms=stamp, key=b"k", value=value) for stamp, value in stamped_values],
            durability="durable" if durable else "written",
        )
        assert (result.base_offset, result.last_offset) == (base, base + len(stamps) - 1)
        self.write(stamped_values)
        if durable:
            self.durable = len(self.model)

    @rule(codec=codecs, count=st.integers(1, 4))
    def append_encoded(self, codec: str | None, count: int) -> None:
        base, stamped_values = len(self.model), self.values([7] * count)
        self.as_leader()
        data = self.bed.batch(0, [Record(timestamp_ms=t, key=b"k", value=v) for t, v in stamped_values], codec=codec)
        assert self.log.append_as_leader(data).base_offset == base
        self.write(stamped_values)

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=3), gap=st.integers(0, 3), durable=st.booleans())
    def append_as_follower(self, counts: list[int], gap: int, durable: bool) -> None:  # noqa: FBT001 - as above
        self.as_follower()
        data, watermark = b"", self.log.offsets().high_watermark
        for count in counts:
            self.model += [None] * gap
            stamped_values, base = self.values([9] * count), len(self.model)
            encoded = [Record(timestamp_ms=t, key=b"k", value=v) for t, v in stamped_values]
            magic = self.bed.components.formats.for_version(self.bed.topic.record_version).magic
            data += self.bed.batch(base, encoded, magic=magic, leader_epoch=self.log.leader_epoch)
            self.write(stamped_values)
        offsets = self.log.append_as_follower(
            data, len(self.model) - 1, self.start, durability="durable" if durable else "written"
        )
        assert offsets.high_watermark == max(len(self.model) - 1, self.start)
        assert watermark <= offsets.log_end == len(self.model)
        if durable:
            self.durable = len(self.model)

    @rule()
    def lead(self) -> None:
        self.log.lead(self.log.leader_epoch + 1)
        assert self.log.offsets().high_watermark == len(self.model)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        """Truncate to the begin of a batch."""
        target = max((begin for begin in self.begins if begin <= len(self.model) - back), default=0)
        assert self.log.truncate_to(target) == (target < len(self.model))
        self.cut(target)

    @rule(share=st.integers(0, 12))
    def begin_again(self, share: int) -> None:
        target = len(self.model) * share // 8
        self.log.truncate_fully_and_start_at(target)
        self.begins.clear()
        self.cut(target)
        self.model += [None] * (target - len(self.model))
        self.model[:] = [None] * target
        self.start = self.durable = target

    @rule()
    def roll(self) -> None:
        assert self.log.roll() == len(self.model)

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == len(self.model)
        self.durable = len(self.model)

    @rule(share=st.integers(0, 10))
    def delete_records(self, share: int) -> None:
        self.as_leader()
        self.start = max(self.start, len(self.model) * share // 10)
        assert self.log.delete_records(self.start) == self.start
        self.durable = max(self.durable, self.start)

    @rule()
    def drop_segments(self) -> None:
        self.log.maintenance.evict(self.start)
        assert self.log.segments()[0].base_offset <= self.start

    @rule()
    def reopen(self) -> None:
        assert self.log.close()
        self._open(clean=True)
        self.durable = len(self.model)

    @rule(lost=st.sampled_from([(), *((suffix,) for suffix in SUFFIXES), SUFFIXES]))
    def reopen_without_disposable_files(self, lost: tuple[str, ...]) -> None:
        assert self.log.close()
        for path in self.bed.folder.iterdir():
            if path.name.endswith(lost or ("none",)):
                path.unlink()
        self._open(clean=True)
        self.durable = len(self.model)

    @rule()
    def crash(self) -> None:
        self.bed.crash()
        self._open(clean=False)

    @rule(lost=st.integers(1, 400))
    @precondition(lambda self: len(self.model) > self.durable)
    def crash_and_lose_the_end(self, lost: int) -> None:
        """Crash, and truncate the file of the last segment.

        The log must keep a prefix of its records, or be empty and begin at the log start.
        """
        self.bed.crash()
        self.bed.log_start = self.start
        last = max(path for path in self.bed.folder.iterdir() if path.suffix == ".log")
        data = last.read_bytes()
        last.write_bytes(data[: max(0, len(data) - lost)])
        before = len(self.model)
        reader = self.bed.open_reader(clean=False)
        promised = reader.offsets().log_end
        self._open(clean=False, at_least=False)
        end = self.log.offsets().log_end
        assert self.start <= end == promised <= before
        self.cut(end)

    # --- changes of the model ------------------------------------------------------------------------------------

    def values(self, stamps: list[int]) -> list[tuple[int, bytes]]:
        """Return values that are used only once, to distinguish truncated records from later ones."""
        self.serial += len(stamps)
        return [(stamp, b"value %d" % (self.serial - index)) for index, stamp in enumerate(stamps)]

    def write(self, stamped_values: list[tuple[int, bytes]]) -> None:
        self.begins.add(len(self.model))
        self.model += stamped_values

    def cut(self, end: int) -> None:
        del self.model[end:]
        self.begins = {begin for begin in self.begins if begin < end}
        self.durable, self.start = min(self.durable, end), min(self.start, end)

    def as_leader(self) -> None:
        if not self.log.is_leader:
            self.log.lead(self.log.leader_epoch + 1)

    def as_follower(self) -> None:
        if self.log.is_leader:
            self.log.follow(self.log.leader_epoch + 1)

    def _open(self, *, clean: bool, at_least: bool = True) -> None:
        self.bed.log_start, self.bed.recovery_point = self.start, min(self.durable, len(self.model))
        self.log = self.bed.open(clean=clean)
        end = self.log.offsets().log_end
        if at_least:  # no file shows a gap at the log end
            assert self.model[end:] == [None] * (len(self.model) - end)
            self.cut(end)

    # --- invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def the_log_is_the_list(self) -> None:
        if not hasattr(self, "log"):
            return
        bounds = self.log.offsets()
        assert (bounds.log_start, bounds.log_end) == (self.start, len(self.model))
        assert bounds.log_start <= bounds.last_stable <= bounds.high_watermark <= bounds.log_end
        assert bounds.log_start <= bounds.local_log_start <= bounds.log_end
        assert self.durable <= bounds.recovery_point <= bounds.log_end
        read = [(record.offset, record.value) for record in self.log.records(isolation="log_end")]
        assert read == [(offset, value) for offset, (_, value) in self.shown()]

    @invariant()
    def every_offset_and_time_is_found(self) -> None:
        if not hasattr(self, "log"):
            return
        visible = self.shown()
        for offset in range(self.start, len(self.model), 3):
            following = next((value for record_offset, (_, value) in visible if record_offset >= offset), None)
            read = next(iter(self.log.records(offset, isolation="log_end")), None)
            assert following == (None if read is None else read.value)
        if self.bed.topic.record_version:
            for stamp in (0, 7, 25, 50):
                expected = next((offset for offset, (record_stamp, _) in visible if record_stamp >= stamp), None)
                assert self.log.offset_for_timestamp(stamp, "log_end") == expected

    def shown(self) -> list[tuple[int, tuple[int, bytes]]]:
        """Return the records that readers must return, with their offsets."""
        return [
            (offset, stamped_value)
            for offset, stamped_value in enumerate(self.model)
            if stamped_value is not None and offset >= self.start
        ]

    def teardown(self) -> None:
        self.bed.close()
        self.folder.cleanup()


TestLogMachine = pytest.mark.long(LogMachine.TestCase)
TestLogMachine.settings = settings(max_examples=200, stateful_step_count=40)
