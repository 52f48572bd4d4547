"""A forked child writes nothing through the objects that its parent opened, and never waits in their methods."""

import gc
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from forked import in_child, is_refusal
from stratalog import Engine, Record
from stratalog.errors import LogDirLockedError

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # Python 3.12 warns where there are threads
]
RECORDS = [Record(value=b"%d" % number * 100) for number in range(100)]


@pytest.fixture
def tier(tmp_path: Path) -> str:
    (tmp_path / "tier").mkdir()
    return (tmp_path / "tier").as_uri()


@pytest.fixture
def engine(tmp_path: Path, tier: str) -> Iterator[Engine]:
    """Yield an engine with records in both tiers and with all kinds of threads."""
    config = {"replica.high.watermark.checkpoint.interval.ms": 600_000}  # the parent changes no file during a test
    with stratalog.open_engine(tmp_path / "data", tier=tier, config=config) as new_engine:
        new_engine.create_topic("t", config={"remote.storage.enable": "true", "local.retention.bytes": 0})
        log = new_engine.log("t", 0)
        for _ in range(3):
            log.append(RECORDS)
            log.roll()
        new_engine.offload()
        new_engine.apply_retention()
        log.append(RECORDS, wait=False).result()
        new_engine.start()
        yield new_engine


def calls(obj: object) -> list[str]:
    """Return the names of all public members of an object except ``close``."""
    names = [name for name, _ in inspect.getmembers_static(type(obj)) if not name.startswith("_")]
    return [name for name in names if name != "close"]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_call_of_every_inherited_object_is_refused_and_nothing_is_written(
    engine: Engine, tier: str, tmp_path: Path
) -> None:
    log, remote = engine.log("t", 0), engine.tier
    assert remote is not None
    assert log.topic_id is not None
    producer, transactional = engine.producer(), engine.producer(transactional_id="x")
    transactional.begin_transaction()
    transactional.send("t", value=b"open").result()
    with (
        engine.consumer(topics=["t"], group="g") as consumer,
        stratalog.open_reader(tier) as of_tier,
        stratalog.open_reader(tmp_path / "data", tier=tier) as of_directory,
    ):
        inherited = [
            *(engine, log, remote, remote.log(log.name, log.topic_id), producer, transactional, consumer),
            *(of_tier, of_tier.log("t", 0), of_directory, of_directory.log("t", 0)),
        ]
        engine.flush()
        before = contents(tmp_path)
        uses = [(obj, name) for obj in inherited for name in calls(obj)]
        outcomes = in_child(*(lambda obj=obj, name=name: getattr(obj, name) for obj, name in uses))
        assert len(outcomes) == len(uses) > 150
        allowed = {(obj, name) for (obj, name), outcome in zip(uses, outcomes, strict=True) if not is_refusal(outcome)}
        assert not allowed
        assert contents(tmp_path) == before


@pytest.mark.long
def test_no_offset_that_a_child_was_given_is_given_out_again_and_the_child_leaves_no_clean_marker(
    engine: Engine, tmp_path: Path
) -> None:
    log, append = engine.log("t", 0), engine.log("t", 0).append
    end, before = log.offsets().log_end, contents(tmp_path / "data")

    def leave() -> None:
        with engine, engine:
            pass

    outcomes = in_child(lambda: append(RECORDS), lambda: engine.log("t", 0), engine.close, leave, log.close, gc.collect)
    assert [is_refusal(outcome) for outcome in outcomes[:4]] == [True] * 4, outcomes
    assert contents(tmp_path / "data") == before
    assert log.append(RECORDS).base_offset == end
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("where", ["local", "tier"])
def test_an_iteration_that_the_parent_began_ends_in_the_child_with_an_error(
    tier: str, tmp_path: Path, where: str
) -> None:
    location = tier if where == "tier" else str(tmp_path / "data")
    with stratalog.open_reader(location, tier=None if where == "tier" else tier) as reader:
        records, fresh = reader.log("t", 0).records(), reader.log("t", 0).records()
        first = next(records)
        begun_outcome, fresh_outcome = in_child(lambda: list(records), lambda: list(fresh))
        assert is_refusal(begun_outcome) or not begun_outcome, "what was in memory at the time of the fork may be shown"
        assert is_refusal(fresh_outcome)
        assert [first, *records] == list(reader.log("t", 0).records())


def test_a_child_opens_a_reader_and_an_engine_of_its_own(engine: Engine, tier: str, tmp_path: Path) -> None:
    expected = [record.value for record in engine.log("t", 0).records(end=300)]

    def read() -> None:
        for location in (tier, tmp_path / "data"):
            with stratalog.open_reader(location, tier=None if location == tier else tier) as reader:
                assert [record.value for record in reader.log("t", 0).records(end=300)] == expected

    def write() -> None:
        with pytest.raises(LogDirLockedError):
            stratalog.open_engine(tmp_path / "data", tier=tier)
        with stratalog.open_engine(tmp_path / "other") as child_engine:
            child_engine.create_topic("u")
            child_engine.start()
            assert child_engine.log("u", 0).append(RECORDS, "durable", wait=False).result().base_offset == 0

    assert in_child(read, write) == ["", ""]


def test_a_child_that_lives_on_does_not_keep_the_directory_locked(tmp_path: Path) -> None:
    """The file lock belongs to the open file description, which a child inherits."""
    engine = stratalog.open_engine(tmp_path)
    reading, writing = os.pipe()
    started_reader, started_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.write(started_writer, b"x")
        os.read(reading, 1)
        os._exit(0)
    os.read(started_reader, 1)  # the child releases the lock before its first instruction
    engine.close()
    try:
        stratalog.open_engine(tmp_path).close()
    finally:
        for descriptor in (writing, reading, started_reader, started_writer):
            os.close(descriptor)
        os.waitpid(child, 0)


@pytest.mark.long
def test_a_child_that_ends_like_any_program_writes_nothing(tmp_path: Path) -> None:
    script = f"""
        import os, sys
        import stratalog
        with stratalog.open_engine({str(tmp_path)!r}) as engine:
            engine.create_topic("t")
            engine.start()
            producer = engine.producer(linger_ms=60_000)
            producer.send("t", value=b"waits")
            child = os.fork()
            if not child:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert engine.log("t", 0).offsets().log_end == 0
            assert not os.path.exists({str(tmp_path / ".kafka_cleanshutdown")!r})
        with stratalog.open_reader({str(tmp_path)!r}) as reader:
            assert [record.value for record in reader.log("t", 0).records()] == [b"waits"]
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)]
    subprocess.run(command, check=True, timeout=120)  # noqa: S603 - our own program
