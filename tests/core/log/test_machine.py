"""A log against a plain list: whatever is done to it, in any order, crashes included."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.config.topic import TopicConfig
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.testing.logs import LogBed

SUFFIXES = (".index", ".timeindex", ".snapshot")
codecs = st.sampled_from([None, "gzip", "lz4"])


class LogMachine(RuleBasedStateMachine):
    """``model`` are the records written, at their offsets; those below ``durable`` may never go."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.bed = LogBed(Path(self.folder.name) / "data", Registry.load())
        self.model: list[tuple[int, bytes]] = []  # timestamp, value
        self.start = self.durable = 0
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

    # --- what may be done ----------------------------------------------------------------------------------------

    @rule(stamps=st.lists(st.integers(0, 50), min_size=1, max_size=5), durable=st.booleans())
    def append(self, stamps: list[int], durable: bool) -> None:  # noqa: FBT001 - hypothesis names its arguments
        base = len(self.model)
        written = [(stamp, b"value %d" % (base + index)) for index, stamp in enumerate(stamps)]
        result = self.log.append(
            [Record(timestamp_ms=stamp, key=b"k", value=value) for stamp, value in written],
            durability="durable" if durable else "written",
        )
        assert (result.base_offset, result.last_offset) == (base, base + len(stamps) - 1)
        self.model += written
        if durable:
            self.durable = len(self.model)

    @rule(codec=codecs, count=st.integers(1, 4))
    def append_encoded(self, codec: str | None, count: int) -> None:
        base = len(self.model)
        written = [(7, b"value %d" % (base + index)) for index in range(count)]
        data = self.bed.batch(0, [Record(timestamp_ms=t, key=b"k", value=v) for t, v in written], codec=codec)
        assert self.log.append_as_leader(data).base_offset == base
        self.model += written

    @rule()
    def roll(self) -> None:
        assert self.log.roll() == len(self.model)

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == len(self.model)
        self.durable = len(self.model)

    @rule(share=st.integers(0, 10))
    def delete_records(self, share: int) -> None:
        self.start = max(self.start, len(self.model) * share // 10)
        assert self.log.delete_records(self.start) == self.start
        self.durable = max(self.durable, self.start)

    @rule()
    def drop_segments(self) -> None:
        self.log.drop_local(self.start)
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
        """Bytes go from the end of the last segment: what is left is a prefix, or begins again at the log start."""
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
        del self.model[end:]
        self.durable = min(self.durable, end)

    def _open(self, *, clean: bool, at_least: bool = True) -> None:
        self.bed.log_start, self.bed.recovery_point = self.start, min(self.durable, len(self.model))
        self.log = self.bed.open(clean=clean)
        if at_least:
            assert self.log.offsets().log_end == len(self.model)

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def the_log_is_the_list(self) -> None:
        if not hasattr(self, "log"):
            return
        bounds = self.log.offsets()
        assert (bounds.log_start, bounds.log_end) == (self.start, len(self.model))
        assert bounds.log_start <= bounds.last_stable <= bounds.high_watermark <= bounds.log_end
        assert bounds.log_start <= bounds.local_log_start <= bounds.log_end
        assert self.durable <= bounds.recovery_point <= bounds.log_end
        read = [(record.offset, record.value) for record in self.log.records()]
        assert read == [(offset, value) for offset, (_, value) in enumerate(self.model)][self.start :]

    @invariant()
    def every_offset_and_time_is_found(self) -> None:
        if not hasattr(self, "log"):
            return
        for offset in range(self.start, len(self.model), 3):
            assert next(iter(self.log.records(offset))).value == self.model[offset][1]
        if self.bed.topic.record_version:
            for stamp in (0, 7, 25, 50):
                found = next((o for o in range(self.start, len(self.model)) if self.model[o][0] >= stamp), None)
                assert self.log.offset_for_timestamp(stamp) == found

    def teardown(self) -> None:
        self.bed.close()
        self.folder.cleanup()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=25)
