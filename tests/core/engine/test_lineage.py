"""Two replicas of a log that share one tier, with leader changes and different records at the same offsets.

Source: Kafka's remote log manager after a failover. The tests check the offset at which the new leader continues
uploads, and which segments of the tier belong to its log if it lacked records when it was elected.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication import replicate
from stratalog import Engine, Record, open_engine, open_reader
from stratalog.cleaning.plan.log_summary import summarise
from stratalog.engine.tiering.offload_log import lag_bytes
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import FencedEpochError, OutOfOrderSequenceError, StorageError
from stratalog.log.log import Log
from stratalog.producers.snapshot import ProducerEntry
from stratalog.spi.formats import BatchHeader
from stratalog.tier.manifest import entry_tree
from stratalog.tier.upkeep.collect import GRACE_MS

START_MS = 1_700_000_000_000
TIERED = {"segment.bytes": 600, "local.retention.bytes": 1, "retention.bytes": -1, "file.delete.delay.ms": 0}


class Replicas:
    """Engines over copies of one directory, and one bucket for all."""

    def __init__(self, tmp_path: Path, clock: ManualClock, *names: str) -> None:
        self.folder, self.clock, self.names = tmp_path, clock, names
        (tmp_path / "bucket").mkdir()
        with self.opened(names[0]) as engine:
            engine.create_topic("t", config=TIERED)
        for name in names[1:]:
            shutil.copytree(tmp_path / names[0], tmp_path / name)

    @property
    def uri(self) -> str:
        return f"file://{self.folder}/bucket"

    def opened(self, name: str) -> Engine:
        config = {"watermark": "external", "log.dirs": [str(self.folder / name)]}
        return open_engine(config=config, tier=self.uri, env=Env(clock=self.clock))

    def in_the_bucket(self) -> list[tuple[int, int, bytes | None]]:
        with open_reader(self.uri) as reader:
            return held(reader.log("t", 0))


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path, ManualClock(START_MS), "a", "b")


@pytest.fixture
def pair(replicas: Replicas) -> Iterator[tuple[Engine, Engine]]:
    with ExitStack() as stack:
        a, b = (stack.enter_context(replicas.opened(name)) for name in replicas.names)
        log_of(a).lead(1)
        log_of(b).follow(1)
        yield a, b


def log_of(engine: Engine) -> Log:
    return engine.log("t", 0)


def write(engine: Engine, count: int, writer: str) -> None:
    """Append batches of two records each. The values contain the name ``writer``."""
    log = log_of(engine)
    for _ in range(count):
        start = log.offsets().log_end
        log.append([Record(value=f"{writer} {start + index}".encode().ljust(100, b".")) for index in range(2)])


def catch_up(leader: Engine, follower: Engine) -> None:
    """Replicate until the follower has all records of the leader, and its high watermark."""
    for _ in range(100):
        if not replicate(log_of(leader), log_of(follower)) and (
            log_of(follower).offsets().high_watermark == log_of(leader).offsets().log_end
        ):
            return
    raise AssertionError("the follower does not catch up")


def held(log: object) -> list[tuple[int, int, bytes | None]]:
    assert hasattr(log, "records")
    return [(record.offset, record.leader_epoch, record.value) for record in log.records(isolation="log_end")]


def commit_all(engine: Engine) -> None:
    log_of(engine).set_high_watermark(log_of(engine).offsets().log_end)


def other_borders(engine: Engine) -> None:
    """Roll the log, so that its segments begin at other offsets than those of the other replica."""
    log_of(engine).roll()


def test_a_new_leader_continues_where_the_tier_ends_whatever_its_segments_borders(
    pair: tuple[Engine, Engine], replicas: Replicas
) -> None:
    a, b = pair
    write(a, 1, "a")
    catch_up(a, b)
    other_borders(b)
    write(a, 9, "a")
    catch_up(a, b)
    borders = [{segment.base_offset for segment in engine.log("t", 0).segments()} for engine in pair]
    (offloaded,) = a.offload()
    assert offloaded.tier_end not in borders[1], "else there is nothing to see here"
    log_of(a).follow(2)
    log_of(b).lead(2)
    write(b, 6, "b")
    commit_all(b)
    rows = held(log_of(b))
    (offloaded,) = b.offload()
    assert offloaded.segments > 1
    assert b.apply_retention()[0].evicted_segments > 2
    assert held(log_of(b)) == rows
    assert replicas.in_the_bucket() == rows[: offloaded.tier_end]
    catch_up(b, a)
    assert held(log_of(a)) == rows


def test_the_part_of_a_segment_that_the_tier_lacks_has_its_own_largest_timestamp(
    pair: tuple[Engine, Engine], replicas: Replicas
) -> None:
    def put(engine: Engine, *times_ms: int) -> None:
        for time_ms in times_ms:
            log_of(engine).append([Record(value=bytes(200), timestamp_ms=START_MS + time_ms)])

    a, b = pair
    put(a, 0)
    catch_up(a, b)
    other_borders(b)
    put(a, 1, 2, 3, 4, 5, 6, 7, 8, 900, 10)
    catch_up(a, b)
    (offloaded,) = a.offload()
    assert 9 in {segment.base_offset for segment in log_of(b).segments()}
    assert offloaded.tier_end == 10, "the tier has the first record of the segment at offset 9"
    log_of(a).follow(2)
    log_of(b).lead(2)
    put(b, *range(11, 16))
    commit_all(b)
    b.offload()
    with open_reader(replicas.uri) as reader:
        ages_ms = {segment.base_offset: segment.age_from_ms - START_MS for segment in reader.log("t", 0).segments()}
    assert (ages_ms[8], ages_ms[10]) == (900, 10)


def diverged(a: Engine, b: Engine) -> int:
    """Let ``a`` offload records that ``b`` never had, and elect ``b``. Return the offset at which the logs diverge."""
    write(a, 5, "a")
    catch_up(a, b)
    write(a, 8, "lost")
    commit_all(a)  # as if a third replica, which has failed, had the records too
    a.offload()
    b.offload()  # a follower reads the head of the tier
    parted = log_of(b).offsets().log_end
    assert parted not in {segment.base_offset for segment in log_of(a).segments()}, "they part inside a segment"
    log_of(a).follow(2)
    log_of(b).lead(2)
    write(b, 10, "b")
    commit_all(b)
    return parted


def test_records_of_an_elected_leader_stay_local_though_the_tier_has_their_offsets(
    pair: tuple[Engine, Engine],
) -> None:
    a, b = pair
    parted = diverged(a, b)
    rows = held(log_of(b))
    evicted = b.apply_retention()[0].evicted_segments
    assert evicted, "what both have may go"
    assert log_of(b).offsets().local_log_start <= parted
    assert held(log_of(b)) == rows
    assert log_of(b).end_offset_for_epoch(1) == (1, parted)


def test_records_of_an_earlier_leader_are_not_taken_out_of_the_tier_unasked(
    pair: tuple[Engine, Engine], replicas: Replicas
) -> None:
    a, b = pair
    parted = diverged(a, b)
    before = replicas.in_the_bucket()
    for _ in range(2):
        with pytest.raises(
            StorageError, match=f"different records from offset {parted}: leader epoch 2 here, 1 in the tier"
        ):
            b.offload()
    assert replicas.in_the_bucket() == before
    write(b, 1, "b")


@pytest.mark.parametrize("page_items", [2, 256])
def test_an_elected_leader_cuts_the_tier_back_where_that_is_wanted(
    pair: tuple[Engine, Engine], replicas: Replicas, page_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", page_items)
    a, b = pair
    parted = diverged(a, b)
    lost = {value for offset, _, value in held(log_of(a)) if offset >= parted}
    b.alter_topic("t", {"unclean.leader.election.enable": True})
    rows = held(log_of(b))
    (offloaded,) = b.offload()
    assert offloaded.tier_end > parted
    assert replicas.in_the_bucket() == rows[: offloaded.tier_end]
    b.apply_retention()
    assert log_of(b).offsets().local_log_start > parted, "what it wrote went to the tier, and is read from there"
    assert held(log_of(b)) == rows
    assert lost.isdisjoint(value for _, _, value in held(log_of(b)))
    replicas.clock.advance_ms(GRACE_MS)
    write(b, 1, "b")  # a commit after the truncation
    log_of(b).roll()
    commit_all(b)
    b.offload()
    replicas.clock.advance_ms(GRACE_MS)
    b.collect()
    assert replicas.in_the_bucket() == held(log_of(b))


@pytest.mark.parametrize("tier_is_cut", [False, True], ids=["before the tier is cut", "after"])
@pytest.mark.parametrize("has_evicted", [False, True], ids=["all on its disk", "the tier alone has it"])
def test_the_writer_of_lost_records_follows_and_reads_the_new_history(
    pair: tuple[Engine, Engine], *, tier_is_cut: bool, has_evicted: bool
) -> None:
    a, b = pair
    parted = diverged(a, b)
    if has_evicted:
        a.apply_retention()
        assert log_of(a).offsets().local_log_start > parted
    b.alter_topic("t", {"unclean.leader.election.enable": True})
    if tier_is_cut:
        b.offload()
        a.offload()
    catch_up(b, a)
    assert held(log_of(a)) == held(log_of(b))
    b.offload()
    a.offload()
    for engine in (a, b):
        engine.apply_retention()
        assert log_of(engine).offsets().local_log_start > parted
    assert held(log_of(a)) == held(log_of(b))
    assert log_of(a).end_offset_for_epoch(1) == log_of(b).end_offset_for_epoch(1) == (1, parted)


def produced(sequence: int, log: Log, *, transactional: bool = False) -> bytes:
    """Return a batch of two records of an idempotent producer."""
    header = BatchHeader(producer_id=77, producer_epoch=0, base_sequence=sequence, transactional=transactional)
    records = [Record(value=f"{number}".encode().ljust(90, b"."), timestamp_ms=START_MS) for number in range(2)]
    return bytes(log.components.formats.of(2, "", 0).encode(records, header, None, None))


def test_a_follower_that_begins_from_the_tier_knows_what_its_leader_knew(
    pair: tuple[Engine, Engine], replicas: Replicas
) -> None:
    """The follower knows the epochs below its start, the log start and the producers.

    As leader, it accepts the same batches as the old leader.
    """
    a, b = pair
    write(a, 2, "a")
    log_of(a).lead(3)
    borders = list[list[ProducerEntry]]()
    for sequence in range(0, 24, 2):
        log_of(a).append_as_leader(produced(sequence, log_of(a)))
        if sequence % 4 == 2:
            log_of(a).roll()
            borders.append(log_of(a).producers())
    commit_all(a)
    log_of(a).delete_records(before=1)
    (offloaded,) = a.offload()
    log_of(b).follow(3)
    b.offload()
    log_of(b).truncate_fully_and_start_at(offloaded.tier_end, log_start=1)
    assert log_of(b).offsets().log_start == 1
    shutil.copytree(replicas.folder / "b", replicas.folder / "killed")
    with replicas.opened("killed") as restarted:
        log = log_of(restarted)
        assert (log.offsets().log_start, log.offsets().local_log_start, log.offsets().log_end) == (
            1,
            28,
            offloaded.tier_end,
        )
        assert log.producers() == log_of(a).producers() == borders[-1]
        assert log.view().epochs.entries == log_of(a).view().epochs.entries
        assert held(log) == held(log_of(a))
        log.lead(4)
        assert log.append_as_leader(produced(22, log)).base_offset == 26, "a retry of the last batch is known as one"
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(produced(26, log))
        assert log.append_as_leader(produced(24, log)).base_offset == 28


def test_aborted_records_stay_hidden_after_part_of_their_segment_is_deleted(
    pair: tuple[Engine, Engine], replicas: Replicas
) -> None:
    a, b = pair
    write(a, 1, "a")
    catch_up(a, b)
    other_borders(b)
    b.alter_topic("t", {"segment.bytes": 100_000})
    write(a, 5, "a")
    for number, commit in enumerate((False, True, False)):
        log_of(a).append_as_leader(produced(2 * number, log_of(a), transactional=True))
        log_of(a).end_transaction(77, 0, commit=commit, coordinator_epoch=0)
        if not number:
            log_of(a).roll()
            commit_all(a)
            a.offload()
    catch_up(a, b)
    log_of(b).lead(2)
    log_of(b).roll()
    write(b, 1, "b")
    commit_all(b)
    committed = [record.offset for record in log_of(b).records(isolation="read_committed")]
    (offloaded,) = b.offload()
    assert (offloaded.segments, offloaded.tier_end) == (1, 21), "one segment, of which the tier had the first part"
    b.apply_retention()
    assert log_of(b).offsets().local_log_start == 21
    assert [record.offset for record in log_of(b).records(isolation="read_committed")] == committed
    with open_reader(replicas.uri) as reader:
        tier_offsets = [record.offset for record in reader.log("t", 0).records(isolation="read_committed")]
        assert tier_offsets == [offset for offset in committed if offset < 21]


def test_records_in_both_tiers_under_different_borders_are_counted_once(pair: tuple[Engine, Engine]) -> None:
    """Sizes, size retention and the lag of the tier count such records once."""
    a, b = pair
    write(a, 1, "a")
    catch_up(a, b)
    other_borders(b)
    write(a, 9, "a")
    catch_up(a, b)
    commit_all(a)
    a.offload()
    b.offload()  # a follower reads the state of the tier
    b.apply_retention()
    write(a, 1, "a")
    catch_up(a, b)
    log, total_bytes = log_of(b), sum(segment.size_bytes for segment in log_of(a).segments())
    segments, start = log.segments(), log.offsets().local_log_start
    cut_segments = [segment for segment in segments if not segment.is_local and segment.end_offset > start]
    assert cut_segments, "one begins only in the tier, and ends on local disk as well"
    for summary in (segments, summarise(log, has_tier=True).segments):
        assert abs(sum(segment.size_bytes for segment in summary) - total_bytes) <= len(cut_segments)
    first = log_of(a).view().segments[0]
    middle = (first.base_offset + first.end_offset) // 2
    half = lag_bytes([first], middle)
    assert 0 < half < first.size_bytes == lag_bytes([first], first.base_offset)
    assert lag_bytes([first], first.end_offset) == 0


def test_an_erasure_reaches_a_local_segment_of_which_the_tier_has_the_first_part(
    pair: tuple[Engine, Engine], replicas: Replicas
) -> None:
    a, b = pair
    key = b"key"
    log_of(a).append([Record(value=b"a".ljust(100, b"."))] * 2)
    catch_up(a, b)
    other_borders(b)
    for _ in range(9):
        log_of(a).append([Record(key=key), Record(value=b"a".ljust(100, b"."))])
    catch_up(a, b)
    (offloaded,) = a.offload()
    b.offload()  # a follower reads the head of the tier
    log_of(a).follow(2)
    log_of(b).lead(2)
    write(b, 6, "b")
    commit_all(b)
    assert any(segment.base_offset < offloaded.tier_end < segment.end_offset for segment in log_of(b).view().segments)
    (result,) = b.erase("t", key)
    assert (result.error, result.is_complete) == (None, True)
    assert b.check_erasure(b.proof_of(result, key), key).holding == ()
    rows = held(log_of(b))
    assert len(rows) == 23
    assert b.offload()[0].segments > 1
    assert held(log_of(b)) == rows
    in_tier = replicas.in_the_bucket()
    assert in_tier == rows[: len(in_tier)]


def test_a_follower_that_is_behind_the_tier_opens_and_follows(replicas: Replicas) -> None:
    with replicas.opened("a") as a:
        log_of(a).lead(1)
        with replicas.opened("b") as b:
            log_of(b).follow(1)
            write(a, 3, "a")
            catch_up(a, b)
        write(a, 9, "a")
        commit_all(a)
        a.offload()
        with replicas.opened("b") as b:
            assert not log_of(b).is_leader
            assert held(log_of(b)) == held(log_of(a))[:6]
            log_of(b).follow(1)
            catch_up(a, b)
            assert held(log_of(b)) == held(log_of(a))


def test_an_engine_alone_does_not_open_what_another_continued_with(replicas: Replicas) -> None:
    with replicas.opened("a") as a, replicas.opened("b") as b:
        log_of(a).lead(1)
        log_of(b).follow(1)
        diverged(a, b)
    config = {"log.dirs": [str(replicas.folder / "b")]}
    with (
        open_engine(config=config, tier=replicas.uri, env=Env(clock=replicas.clock)) as b,
        pytest.raises(FencedEpochError),
    ):
        b.log("t", 0)


def test_epochs_of_deleted_records_that_the_tier_lacks_are_no_divergence(replicas: Replicas) -> None:
    """The tier has the epoch 0 alone, and the leader has deleted the records of the epochs 1 and 2.

    The leader once answered that its epoch 0 ends where its first epoch begins. A follower in epoch 2 then truncated
    all its records of the epochs 1 and 2, and its log ended below the high watermark.
    """
    with replicas.opened("a") as a, replicas.opened("b") as b:
        leader, follower = a.log("t", 0), b.log("t", 0)
        follower.follow(0)
        for epoch in range(3):
            leader.lead(epoch)
            follower.follow(epoch)
            leader.append([Record(value=b"%d" % epoch)])
            replicate(leader, follower)
            replicate(leader, follower)
            leader.roll()
            if not epoch:
                a.offload()
        leader.lead(3)
        leader.append([Record(value=b"3")])
        leader.delete_records(3)
        assert leader.view().remote_end == 1
        follower.follow(3)
        assert leader.end_offset_for_epoch(2) == (2, 3)
        assert replicate(leader, follower) == 1
        assert (follower.offsets().log_start, follower.offsets().log_end) == (3, 4)
