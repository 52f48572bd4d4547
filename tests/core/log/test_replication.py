"""Two replicas, leader changes and crashes: committed records stay, and both logs become equal.

Source: Kafka's tables of replication, and its rules for followers (KIP-101, KIP-320, and the diverging epochs of
KIP-595).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from log_bed import LogBed, records
from replication import replicate
from stratalog.config.topic import TopicConfig
from stratalog.errors import OffsetOutOfRangeError
from stratalog.log.log import Log
from stratalog.model.offsets import EpochEnd, Watermark
from stratalog.model.records import Record
from stratalog.registry.registry import Registry


def held(log: Log) -> list[tuple[int, int, bytes | None]]:
    return [(record.offset, record.leader_epoch, record.value) for record in log.records(isolation="log_end")]


def records_end(log: Log) -> int:
    """Return the offset after the last record; the log start if there is no record."""
    ends = [record.offset + 1 for record in log.records(isolation="log_end")][-1:]
    return max([*ends, log.offsets().log_start])


def stored_end(log: Log) -> int:
    """Return the log end that the files show: a truncation inside a batch removes the whole batch."""
    return max(records_end(log), log.view().segments[-1].base_offset)


# --- the worked examples ---------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, installed: Registry) -> Iterator[list[Log]]:
    beds = [LogBed(tmp_path / name, installed, watermark=Watermark.EXTERNAL) for name in ("leader", "follower")]
    with beds[0], beds[1]:
        yield [bed.open(high_watermark=0) for bed in beds]


def test_a_follower_cuts_what_another_leader_never_had(pair: list[Log]) -> None:
    """The leader has the epochs {0: 0, 2: 5} and log end 9, the follower {0: 0, 1: 4} and log end 7.

    The follower truncates to 4, and then fetches the rest.
    """
    leader, follower = pair
    for offset in range(5):
        leader.append(records(1, start=offset))
    for offset in range(4):
        follower.append(records(1, start=offset))
    follower.lead(1)
    follower.append(records(3, start=90))
    leader.lead(2)
    leader.append(records(4, start=5))
    follower.follow(2)
    with leader.fetch(7, isolation="log_end", last_fetched_epoch=1) as fetched:
        assert (fetched.diverging, fetched.size_bytes, fetched.next_offset) == (EpochEnd(0, 5), 0, 7)
    assert replicate(leader, follower) == -3
    assert follower.offsets().log_end == 4
    while replicate(leader, follower):
        pass
    assert held(follower) == held(leader)
    assert follower.view().epochs == leader.view().epochs


def test_a_follower_that_has_more_records_than_its_leader_gets_the_end_of_their_last_common_epoch(
    pair: list[Log],
) -> None:
    leader, follower = pair
    leader.append(records(2))
    for offset in range(5):
        follower.append(records(1, start=offset))
    leader.lead(1)
    follower.follow(1)
    with leader.fetch(5, isolation="log_end", last_fetched_epoch=0) as fetched:
        assert (fetched.diverging, fetched.size_bytes, fetched.next_offset) == (EpochEnd(0, 2), 0, 5)
    assert replicate(leader, follower) == -3
    assert held(follower) == held(leader)


def test_a_follower_that_is_ahead_of_its_leader_fetches_the_end_of_its_last_epoch(pair: list[Log]) -> None:
    """A truncation to the leader's log end could end inside a batch, and keep records that the leader never had."""
    leader, follower = pair
    for log in pair:
        log.append(records(5))
    follower.lead(1)
    follower.append(records(3, start=90))
    leader.lead(2)
    leader.append(records(1, start=5))
    follower.follow(2)
    with leader.fetch(8, isolation="log_end", last_fetched_epoch=1) as fetched:
        assert (fetched.diverging, fetched.size_bytes, fetched.next_offset) == (EpochEnd(0, 5), 0, 8)
    assert replicate(leader, follower) == -3
    leader.set_high_watermark(6)
    leader.delete_records(1)
    for offset, last_epoch in ((0, 0), (9, 3)):  # a deleted offset, an unknown epoch
        with pytest.raises(OffsetOutOfRangeError):
            leader.fetch(offset, isolation="log_end", last_fetched_epoch=last_epoch)


def test_a_high_watermark_lags_by_one_fetch(pair: list[Log]) -> None:
    leader, follower = pair
    leader.append(records(4))
    follower.follow(0)
    watermarks = []
    for count in (1, 0, 0):
        if count:
            leader.append(records(count))
        replicate(leader, follower)
        watermarks.append((leader.offsets().high_watermark, follower.offsets().high_watermark))
    assert watermarks == [(0, 0), (5, 5), (5, 5)]


def test_records_that_were_committed_survive_a_follower_that_restarts_and_leads(pair: list[Log]) -> None:
    """The first scenario of KIP-101: a truncation to the follower's stale high watermark would lose these records."""
    leader, follower = pair
    follower.follow(0)
    leader.append(records(2))
    replicate(leader, follower)
    leader.set_high_watermark(2)
    assert follower.offsets().high_watermark == 0
    follower.lead(1)
    leader.follow(1)
    while replicate(follower, leader):
        pass
    assert held(follower) == held(leader) == [(0, 0, b"v0"), (1, 0, b"v1")]


# --- any order -------------------------------------------------------------------------------------------------------


class ReplicaMachine(RuleBasedStateMachine):
    """State machine of two replicas.

    ``committed`` has the records below the highest high watermark of any leader. Both logs have had these records.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        registry = Registry.load()
        self.beds = [LogBed(Path(self.folder.name) / name, registry, watermark=Watermark.EXTERNAL) for name in "ab"]
        self.logs: list[Log] = []
        self.watermarks = [0, 0]
        self.leader = self.epoch = self.serial = self.start = 0
        self.committed: dict[int, tuple[int, bytes | None]] = {}

    @initialize(segment_bytes=st.sampled_from([250, 600]), interval_bytes=st.sampled_from([0, 4096]))
    def begin(self, segment_bytes: int, interval_bytes: int) -> None:
        for bed in self.beds:
            bed.topic = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
            self.logs.append(bed.open(high_watermark=0))
        self.elect(0)

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        log = self.logs[self.leader]
        log.append([Record(timestamp_ms=1, value=b"%d" % (self.serial + index)) for index in range(count)])
        self.serial += count

    @rule(max_bytes=st.sampled_from([1, 150, 1 << 20]))
    def fetch(self, max_bytes: int) -> None:
        replicate(self.logs[self.leader], self.logs[1 - self.leader], max_bytes)
        self.commit()

    @rule(leader=st.integers(0, 1))
    def elect(self, leader: int) -> None:
        self.leader, self.epoch = leader, self.epoch + 1
        self.logs[leader].lead(self.epoch)
        self.logs[1 - leader].follow(self.epoch)

    @rule(which=st.integers(0, 1))
    def roll(self, which: int) -> None:
        self.logs[which].roll()

    @rule(which=st.integers(0, 1))
    def flush(self, which: int) -> None:
        self.beds[which].recovery_point = self.logs[which].flush()

    @rule(share=st.integers(0, 4))
    def delete_records(self, share: int) -> None:
        """Delete records by offset. A new leader may not know yet that these records were committed."""
        log = self.logs[self.leader]
        committed = log.offsets().high_watermark
        self.start = max(self.start, log.delete_records(min(max(committed * share // 4, self.start), committed)))

    @rule(which=st.integers(0, 1))
    def drop_segments(self, which: int) -> None:
        self.logs[which].maintenance.evict(self.logs[which].offsets().log_start)

    @rule(which=st.integers(0, 1), clean=st.booleans(), stale=st.booleans())
    def restart(self, which: int, clean: bool, stale: bool) -> None:  # noqa: FBT001 - hypothesis names its arguments
        """Restart a replica with its stored high watermark, which may be stale."""
        bed, offsets, end = self.beds[which], self.logs[which].offsets(), stored_end(self.logs[which])
        if not stale:
            self.watermarks[which] = offsets.high_watermark
        bed.log_start = offsets.log_start
        if clean:
            self.logs[which].close()
        else:
            bed.crash()
        self.logs[which] = bed.open(clean=clean, high_watermark=min(self.watermarks[which], end))
        assert self.logs[which].offsets().log_end == end
        self.elect(1 - which if which == self.leader else self.leader)

    @rule()
    def catch_up(self) -> None:
        """Replicate until both logs are equal, however they diverged."""
        leader, follower = self.logs[self.leader], self.logs[1 - self.leader]
        if leader.offsets().log_end > records_end(leader):
            self.append(1)  # a leader that was truncated inside a batch has no record just below its log end to fetch
        for _ in range(200):
            epochs = follower.view().epochs  # a truncation at the log end removes only epochs
            is_done = not replicate(leader, follower) and follower.view().epochs == epochs
            if is_done and follower.offsets().log_end == leader.offsets().log_end:
                break
        replicate(leader, follower)
        self.commit()
        leader_rows, follower_rows = held(leader), held(follower)
        start = max(leader.offsets().log_start, follower.offsets().log_start)
        assert [row for row in leader_rows if row[0] >= start] == [row for row in follower_rows if row[0] >= start]
        assert leader.offsets().log_end == follower.offsets().log_end == leader.offsets().high_watermark
        for log in (leader, follower):
            assert all(log.view().epochs.epoch_at(offset) == epoch for offset, epoch, _ in held(log))

    def commit(self) -> None:
        log = self.logs[self.leader]
        for record in log.records():
            content = record.leader_epoch, record.value
            assert self.committed.setdefault(record.offset, content) == content  # the record at an offset never changes

    @invariant()
    def what_is_committed_is_in_the_leaders_log(self) -> None:
        if not self.logs:
            return
        for log in self.logs:
            bounds = log.offsets()
            assert bounds.log_start <= bounds.last_stable <= bounds.high_watermark <= bounds.log_end
            assert bounds.log_start <= bounds.local_log_start <= bounds.log_end
            assert bounds.recovery_point <= bounds.log_end
        log = self.logs[self.leader]
        start, contents = log.offsets().log_start, {offset: (epoch, value) for offset, epoch, value in held(log)}
        assert all(contents.get(offset) == content for offset, content in self.committed.items() if offset >= start)

    def teardown(self) -> None:
        if self.logs:
            self.catch_up()
        for bed in self.beds:
            bed.close()
        self.folder.cleanup()


TestReplicaMachine = pytest.mark.long(ReplicaMachine.TestCase)
TestReplicaMachine.settings = settings(max_examples=300, stateful_step_count=40)
