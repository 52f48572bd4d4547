"""Progress of long operations in bytes, which never decreases. An exception in the callback ends the operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog import Engine, Record, open_engine
from stratalog.env.progress import Progress

CONFIG = {"remote.storage.enable": True, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


class Recorder:
    """Callback that records its arguments."""

    def __init__(self) -> None:
        self.told = list[tuple[int, int]]()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        self.told.append((done_bytes, total_bytes))

    def check(self) -> int:
        """Check that the numbers never decrease and end at the total. Return the total."""
        assert self.told == sorted(self.told)
        assert all(done_bytes <= total_bytes for done_bytes, total_bytes in self.told)
        done_bytes, total_bytes = self.told[-1]
        assert done_bytes == total_bytes
        return total_bytes


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Yield an engine with two partitions of three closed segments of 256 KiB each."""
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "data", tier=(tmp_path / "bucket").as_uri()) as new_engine:
        new_engine.create_topic("t", partitions=2, config=CONFIG)
        for partition in range(2):
            for number in range(3):
                record = Record(key=b"k%d" % number, value=bytes(1 << 16))
                new_engine.log("t", partition).append([record] * 4)
                new_engine.log("t", partition).roll()
        yield new_engine


def closed_bytes(engine: Engine) -> int:
    return sum(segment.size_bytes for number in (0, 1) for segment in engine.log("t", number).view().segments[:-1])


def test_an_offload_reports_the_bytes_of_all_logs(engine: Engine) -> None:
    recorder, waiting = Recorder(), closed_bytes(engine)
    results = engine.offload(progress=recorder)
    assert recorder.check() == waiting == sum(result.size_bytes for result in results)
    assert len(recorder.told) > 6  # the callback is called for pieces of the six segments


def offload(engine: Engine, progress: Progress) -> object:
    return engine.offload(progress=progress)


WORK: dict[str, Callable[[Engine, Progress], object]] = {
    "retention": lambda engine, progress: engine.apply_retention(progress=progress),
    "cleaner": lambda engine, progress: engine.run_cleaner(progress=progress),
    "erase": lambda engine, progress: engine.erase("t", b"k1", progress=progress),
    "verify": lambda engine, progress: engine.verify(progress=progress),
    "deep verify": lambda engine, progress: engine.verify(deep=True, progress=progress),
}


@pytest.mark.parametrize("offloaded", [False, True])
@pytest.mark.parametrize("work", [name for name in WORK if name != "cleaner"])
def test_each_operation_reports_bytes_up_to_the_end(engine: Engine, work: str, *, offloaded: bool) -> None:
    if offloaded:
        engine.offload()
    recorder = Recorder()
    WORK[work](engine, recorder)
    assert recorder.check() >= closed_bytes(engine)


@pytest.mark.parametrize("has_tier", [False, True])
def test_the_cleaner_reports_what_both_passes_read(engine: Engine, *, has_tier: bool) -> None:
    if has_tier:
        engine.offload()
    else:
        engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
    recorder, before = Recorder(), closed_bytes(engine)
    (first, second) = engine.run_cleaner(progress=recorder)
    assert first.error is second.error is None
    assert recorder.check() == 2 * before


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("work", ["offload", *WORK])
def test_an_exception_of_the_callback_ends_the_work_which_can_be_repeated(
    engine: Engine, work: str, error: type[BaseException]
) -> None:
    def stop(done_bytes: int, _total_bytes: int) -> None:
        if done_bytes:
            raise error

    run = WORK.get(work, offload)
    records = [[record for record in engine.log("t", number).records() if record.key != b"k1"] for number in (0, 1)]
    if work == "cleaner":
        engine.offload()  # the cleaner skips logs that wait for an offload
    with pytest.raises(error):
        run(engine, stop)
    recorder = Recorder()
    run(engine, recorder)
    recorder.check()
    if work == "offload":
        assert [result.tier_end for result in engine.offload()] == [12, 12]
    if work != "cleaner":
        for number in (0, 1):
            remaining = [record for record in engine.log("t", number).records() if record.key != b"k1"]
            assert remaining == records[number]
    assert all(result.ok for result in engine.verify(deep=True))
