"""Contract tests of bulk writers, which stage records in tasks and publish them in one commit for each log."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from typing import Final

import pytest

from stratalog.errors import ConfigError, OffsetsOutOfOrderError, TopicExistsError, UnknownTopicError
from stratalog.model.names import TopicPartition
from stratalog.model.records import Record, RecordColumns
from stratalog.reading.open_reader import open_settled
from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.staged import Published, StagedSegment
from stratalog.writing.write_target import WriteTarget

LOG: Final = TopicPartition("orders", 1)
SEGMENT_BYTES: Final = 20_000


def made_records(count: int, task: int = 0, *, offset: int = 0, step: int = 1) -> list[Record]:
    """Return records whose values contain their number and task. Some have no key, no value, or headers."""
    return [
        Record(
            offset=offset + number * step,
            key=None if number % 7 == 3 else b"key %d" % number,
            value=None if number % 5 == 4 else b"value %d of task %d" % (number, task),
            timestamp_ms=1_700_000_000_000 + number,
            headers=(("from", b"%d" % task), ("none", None)) if number % 3 == 0 else (),
        )
        for number in range(count)
    ]


def fields_of(record: Record) -> tuple[object, ...]:
    """Return timestamp, key, value and headers of a record, without its offset."""
    return record.timestamp_ms, record.key, record.value, record.headers


class BulkWriterContract:
    """Contract of a bulk writer: subclass it, name the class ``Test...``, and override the fixture ``target``.

    ``target`` returns an empty write target.
    """

    @pytest.fixture
    def target(self) -> WriteTarget:
        """Return the target to check; overridden by the subclass."""
        raise NotImplementedError("a subclass of BulkWriterContract must define the fixture target")

    @pytest.fixture(autouse=True)
    def _topic(self, target: WriteTarget) -> None:
        with target.open() as writer:
            writer.create_topic("orders", 2, {"segment.bytes": SEGMENT_BYTES})

    @staticmethod
    def stage(target: WriteTarget, records: Sequence[Record]) -> list[StagedSegment]:
        """Stage the records as one task, and return the staged segments.

        The staged segments were pickled and unpickled, as if another process had staged them.
        """
        with target.open() as writer, writer.stage(LOG) as stage:
            for start in range(0, len(records), 100):
                stage.add(RecordColumns.from_records(records[start : start + 100]))
            staged_segments: list[StagedSegment] = pickle.loads(pickle.dumps(stage.finish()))  # noqa: S301 - our own bytes
            return staged_segments

    @staticmethod
    def read(target: WriteTarget) -> list[Record]:
        """Return all records of the log, as a reader returns them."""
        options = target.tier_options
        with open_settled(target.location, target.settings(), tier_options=options) as reader:
            return list(reader.log(*LOG).records(start=0))

    def test_a_check_refuses_the_records_that_staging_refuses(self, target: WriteTarget) -> None:
        """``check`` raises for an unknown topic and for an unknown codec."""
        with target.open() as writer:
            writer.check("orders")
            writer.check("orders", compression="zstd")
            with pytest.raises(UnknownTopicError):
                writer.check("payments")
            with pytest.raises(ConfigError):
                writer.check("orders", compression="rar")

    def test_nothing_is_seen_before_it_is_published(self, target: WriteTarget) -> None:
        """Staged records are invisible to readers before they are published."""
        self.stage(target, made_records(300))
        assert self.read(target) == []

    def test_the_records_of_all_tasks_are_published_once_in_task_order(self, target: WriteTarget) -> None:
        """Records of all tasks are read once, in order, with consecutive offsets and all their fields."""
        tasks = [made_records(700, task) for task in range(3)]
        staged_segments = [actual for records in tasks for actual in self.stage(target, records)]
        with target.open() as writer:
            publication = writer.append(LOG, staged_segments, WriteMark("query", 0))
        actual = self.read(target)
        assert [record.offset for record in actual] == list(range(2100))
        assert [fields_of(record) for record in actual] == [
            fields_of(record) for records in tasks for record in records
        ]
        assert (publication.base_offset, publication.end_offset, publication.duplicate) == (0, 2100, False)

    def test_segments_have_the_size_of_the_topic_setting(self, target: WriteTarget) -> None:
        """Segments reach the topic's segment size, even if one task staged many times as much."""
        with target.open() as writer:
            publication = writer.append(LOG, self.stage(target, made_records(2000)))
        assert publication.segments >= publication.size_bytes / SEGMENT_BYTES > 2
        assert len(self.read(target)) == 2000

    def test_a_round_is_published_once(self, target: WriteTarget) -> None:
        """An append of the same round or of an earlier round is reported as a duplicate, and publishes nothing.

        This holds even if another attempt of the round staged other records.
        """
        staged_segments = self.stage(target, made_records(150))
        with target.open() as writer:
            writer.append(LOG, staged_segments, WriteMark("query", 7))
        with target.open() as writer:
            repeated_append = writer.append(LOG, staged_segments, WriteMark("query", 7))
        other_segments = self.stage(target, made_records(150, 1))
        with target.open() as writer:
            assert writer.append(LOG, other_segments, WriteMark("query", 7)).duplicate
            assert writer.append(LOG, other_segments, WriteMark("query", 3)).duplicate
            assert writer.append(LOG, [], WriteMark("query", 7)).duplicate
            assert not writer.append(LOG, [], WriteMark("query", 8)).duplicate
        assert repeated_append.duplicate
        assert [fields_of(record) for record in self.read(target)] == [
            fields_of(record) for record in made_records(150)
        ]

    def test_rounds_of_several_writers_are_independent(self, target: WriteTarget) -> None:
        """Each writer name has its own round numbers, and its rounds are appended at the log end."""
        for number in range(3):
            for name in ("one", "two"):
                staged_segments = self.stage(target, made_records(10, number))
                with target.open() as writer:
                    assert not writer.append(LOG, staged_segments, WriteMark(name, number)).duplicate
        assert len(self.read(target)) == 60

    def test_discarded_records_are_gone_and_published_records_stay(self, target: WriteTarget) -> None:
        """``discard`` keeps published segments: a job that aborts may not know whether its commit succeeded."""
        published_segments, discarded_segments = (
            self.stage(target, made_records(40)),
            self.stage(target, made_records(40, 1)),
        )
        with target.open() as writer:
            writer.append(LOG, published_segments, WriteMark("query", 0))
        with target.open() as writer:
            writer.discard([*published_segments, *discarded_segments])
            writer.discard(discarded_segments)
        assert [fields_of(record) for record in self.read(target)] == [fields_of(record) for record in made_records(40)]

    def test_a_stage_that_fails_leaves_nothing(self, target: WriteTarget) -> None:
        """A stage that fails publishes nothing and does not disturb the next stage."""
        with target.open() as writer:
            stage = writer.stage(LOG)
            with contextlib.suppress(ZeroDivisionError), stage:
                stage.add(RecordColumns.from_records(made_records(300)))
                raise ZeroDivisionError
            assert stage.finish() == []
            assert writer.append(LOG, []).segments == 0
        assert self.read(target) == []

    def test_offsets_can_be_kept(self, target: WriteTarget) -> None:
        """``keep_offsets`` keeps offsets and their gaps, from the base offset of the first staged segment."""
        records = made_records(500, offset=1000, step=3)
        with target.open() as writer, writer.stage(LOG, base_offset=990) as stage:
            stage.add(RecordColumns.from_records(records))
            staged_segments = stage.finish(3000)
        with target.open() as writer:
            publication = writer.append(LOG, staged_segments, keep_offsets=True)
        actual = self.read(target)
        assert [record.offset for record in actual] == [record.offset for record in records]
        assert (publication.base_offset, publication.end_offset) == (990, 3000)
        with target.open() as writer:
            late_publication = writer.append(LOG, self.stage(target, made_records(1)))
        assert late_publication.base_offset == 3000

    def test_offsets_that_are_kept_must_continue_where_the_log_ends(self, target: WriteTarget) -> None:
        """``append`` publishes nothing and raises if kept offsets do not begin at the log end."""
        with target.open() as writer:
            writer.append(LOG, self.stage(target, made_records(5)))
        with target.open() as writer, writer.stage(LOG, base_offset=7) as stage:
            stage.add(RecordColumns.from_records(made_records(3, offset=7)))
            staged_segments = stage.finish()
        with target.open() as writer, pytest.raises(OffsetsOutOfOrderError, match="5"):
            writer.append(LOG, staged_segments, keep_offsets=True)
        assert len(self.read(target)) == 5

    def test_a_gap_between_offsets_that_are_kept_does_not_change_an_empty_log(self, target: WriteTarget) -> None:
        """After ``append`` has refused the segments, it accepts a part of them."""
        staged_segments = list[StagedSegment]()
        for offset in (100, 200):
            with target.open() as writer, writer.stage(LOG, base_offset=offset) as stage:
                stage.add(RecordColumns.from_records(made_records(3, offset=offset)))
                staged_segments += stage.finish()
        with target.open() as writer:
            with pytest.raises(OffsetsOutOfOrderError):
                writer.append(LOG, staged_segments, keep_offsets=True)
            publication = writer.append(LOG, staged_segments[1:], keep_offsets=True)
        assert (publication.base_offset, publication.end_offset) == (200, 203)

    def test_rounds_that_are_small_leave_few_segments(self, target: WriteTarget) -> None:
        """Merging the log end after each small round keeps the number of segments low.

        The merge changes neither the bytes of the batches nor the write marks of the rounds.
        """
        rounds, records, copied = 72, list[Record](), 0
        with target.open() as writer:
            for number in range(rounds):
                round_records = made_records(3, number)
                with writer.stage(LOG) as stage:
                    stage.add(RecordColumns.from_records(round_records))
                    writer.append(LOG, stage.finish(), WriteMark("query", number))
                records += round_records
                merged = writer.merge_end(LOG, 1 << 20) if number < rounds - 8 else None
                copied += merged.size_bytes if merged is not None else 0
        before = self.batches(target)
        with target.open() as writer:
            assert writer.merge_end(LOG, 1 << 20) is not None
            assert writer.append(LOG, self.stage(target, round_records), WriteMark("query", number)).duplicate
        assert [fields_of(record) for record in self.read(target)] == [fields_of(record) for record in records]
        assert self.batches(target) == before
        sizes = self.sizes(target)
        assert len(sizes) <= 16
        assert copied <= 2 * sum(sizes)
        with target.open() as writer:
            late = writer.append(LOG, self.stage(target, made_records(1)), WriteMark("query", rounds))
        assert (late.base_offset, late.duplicate) == (3 * rounds, False)

    def test_segments_at_the_end_are_merged_only_where_it_is_worth_it(self, target: WriteTarget) -> None:
        """``merge_end`` does nothing for a few segments, across a large segment, or above the size bound."""
        for count in (3, 3, 3, 500, 3, 3, 3, 3, 3, 3, 3):
            with target.open() as writer:
                writer.append(LOG, self.stage(target, made_records(count)))
                assert writer.merge_end(LOG, 1 << 20) is None
        with target.open() as writer:
            writer.append(LOG, self.stage(target, made_records(3)))
        sizes = self.sizes(target)
        last = sum(sizes[-8:])
        with target.open() as writer:
            assert writer.merge_end(LOG, 0) is None
            assert writer.merge_end(LOG, last - 1) is None
            merge = writer.merge_end(LOG, last)
            assert merge is not None
            assert (merge.base_offset, merge.end_offset, merge.segments, merge.size_bytes) == (509, 533, 1, last)
            assert writer.merge_end(LOG, 1 << 20) is None
        assert self.sizes(target) == [*sizes[:-8], last]

    @staticmethod
    def batches(target: WriteTarget) -> bytes:
        """Return the stored bytes of all batches of the log."""
        with open_settled(target.location, target.settings(), tier_options=target.tier_options) as reader:
            log, offset, data = reader.log(*LOG), 0, b""
            while True:
                with log.fetch(offset, max_bytes=1 << 20) as fetched:
                    if not fetched.slices:
                        return data
                    data += fetched.read()
                    offset = fetched.next_offset

    @staticmethod
    def sizes(target: WriteTarget) -> list[int]:
        """Return the size of each segment that is not empty, in bytes."""
        with open_settled(target.location, target.settings(), tier_options=target.tier_options) as reader:
            return [segment.size_bytes for segment in reader.log(*LOG).segments() if segment.size_bytes]

    def test_topics_are_made_once(self, target: WriteTarget) -> None:
        """Creating the same topic again does nothing; another number of partitions raises TopicExistsError."""
        with target.open() as writer:
            writer.create_topic("orders", 2)
            assert dict(writer.topics()) == {"orders": 2}
            assert writer.config("orders").segment_bytes == SEGMENT_BYTES
            with pytest.raises(TopicExistsError, match="2 partitions, not 3"):
                writer.create_topic("orders", 3)

    def test_missing_files_are_named(self, target: WriteTarget) -> None:
        """The error names the unknown topic or partition."""
        with target.open() as writer:
            with pytest.raises(UnknownTopicError, match="payments"):
                writer.config("payments")
            with pytest.raises(UnknownTopicError, match="orders-2"):
                writer.stage(TopicPartition("orders", 2))

    def test_an_unknown_topic_prevents_the_publication_in_all_logs(self, target: WriteTarget) -> None:
        """``append_all`` raises the error before its first commit."""
        staged_segments = self.stage(target, made_records(5))
        with target.open() as writer:
            with pytest.raises(UnknownTopicError, match="payments"):
                writer.append_all({LOG: staged_segments, TopicPartition("payments", 0): []})
            (error,) = writer.append_all({TopicPartition("orders", 2): []})
            assert isinstance(error, UnknownTopicError)
        assert self.read(target) == []

    def test_an_unknown_topic_does_not_prevent_merges_of_other_logs(self, target: WriteTarget) -> None:
        """``merge_ends`` returns the error for each log of the topic."""
        for number in range(8):
            with target.open() as writer:
                writer.append(LOG, self.stage(target, made_records(5, number)))
        with target.open() as writer:
            merged, error = writer.merge_ends([LOG, TopicPartition("payments", 0)], SEGMENT_BYTES)
        assert isinstance(merged, Published)
        assert isinstance(error, UnknownTopicError)

    def test_an_empty_round_changes_nothing(self, target: WriteTarget) -> None:
        """Publishing no segments is not an error and changes nothing."""
        with target.open() as writer:
            publication = writer.append(LOG, [], WriteMark("query", 0))
        assert (publication.base_offset, publication.end_offset, publication.segments) == (0, 0, 0)
