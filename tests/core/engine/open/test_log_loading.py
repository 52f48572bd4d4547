"""Loading of the logs of one directory by several threads, with the same result as by one thread."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import cast

import pytest

import stratalog
from log_bed import LogBed, records
from stratalog import Record
from stratalog.engine.open.log_opener import Loading, load_all
from stratalog.env import Env, PosixVfs
from stratalog.env.clock import ManualClock
from stratalog.env.progress import Progress, ProgressSum, no_progress
from stratalog.errors import CorruptCheckpointError
from stratalog.log.load.loaded_log import LoadedLog, LoadRequest

LOGS = 6


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of several logs with an incomplete last batch, without a clean shutdown marker."""
    folder = tmp_path_factory.mktemp("crashed") / "data"
    with stratalog.open_engine(folder, topic_defaults={"segment.bytes": 400, "index.interval.bytes": 0}) as engine:
        engine.create_topic("t", partitions=LOGS)
        for partition in range(LOGS):
            for number in range(5 + partition):
                engine.log("t", partition).append([Record(timestamp_ms=number, value=b"%d" % number * 50)])
    for partition in range(LOGS):
        last = max((folder / f"t-{partition}").glob("*.log"))
        last.write_bytes(last.read_bytes()[:-1])
    (folder / ".kafka_cleanshutdown").unlink()
    (folder / "recovery-point-offset-checkpoint").unlink()
    return folder


@pytest.fixture
def copy(crashed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(crashed, tmp_path / "data")


class Stub:
    """Replacement of a log for ``load_all``.

    Loading it advances the clock by ``alone_ms`` if no other log is being loaded, else by ``beside_ms``.
    """

    def __init__(self, number: int, clock: ManualClock, *, clean: bool, alone_ms: int, beside_ms: int) -> None:
        self.number, self._clock, self._alone_ms, self._beside_ms = number, clock, alone_ms, beside_ms
        self.request = LoadRequest(clean=clean, recovery_point=0, log_start=None, high_watermark=None, writable=True)
        self.at_a_time = 0
        self.result = LoadedLog.__new__(LoadedLog)

    def run(self, progress: Progress = no_progress) -> LoadedLog:
        del progress
        self.at_a_time = 1 + sum("stratalog-recovery" in thread.name for thread in threading.enumerate())
        self._clock.advance_ms(self._alone_ms if self.at_a_time == 1 else self._beside_ms)
        return self.result


def at_a_time(clock: ManualClock, count: int, *, clean: bool, alone_ms: int, beside_ms: int) -> list[int]:
    """Load logs with these durations. For each log, return the number of logs that were being loaded at that time.

    Check that the results are in the order of the logs.
    """
    stubs = [Stub(number, clock, clean=clean, alone_ms=alone_ms, beside_ms=beside_ms) for number in range(count)]
    loadings = cast("list[Loading]", stubs)
    loaded_logs = list(load_all(loadings, 3, ProgressSum(None), clock))
    assert [loading for loading, _ in loaded_logs] == loadings
    assert all(result is stub.result for stub, (_, result) in zip(stubs, loaded_logs, strict=True))
    return [stub.at_a_time for stub in stubs]


def test_many_clean_logs_are_loaded_the_way_that_is_faster() -> None:
    """If the disk responds without delay, more threads only compete for the interpreter lock."""
    clock = ManualClock()
    warm = at_a_time(clock, 1000, clean=True, alone_ms=1, beside_ms=2)
    assert set(warm[-800:]) == {1}
    cold = at_a_time(clock, 1000, clean=True, alone_ms=9, beside_ms=1)
    assert cold[-800] > 1
    assert 1 in cold


@pytest.mark.parametrize(("count", "clean"), [(1000, False), (100, True)])
def test_few_logs_and_those_to_recover_are_loaded_beside_each_other(count: int, *, clean: bool) -> None:
    counts = at_a_time(ManualClock(), count, clean=clean, alone_ms=1, beside_ms=2)
    assert counts[0] > 1


def settings(threads: int) -> dict[str, object]:
    return {"num.recovery.threads.per.data.dir": threads}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*-*/*"))}


def test_any_number_of_threads_gives_the_same_files(crashed: Path, tmp_path: Path) -> None:
    folder_contents = []
    for threads in (1, 2, 20):
        folder = shutil.copytree(crashed, tmp_path / str(threads))
        with stratalog.open_engine(folder, config=settings(threads)) as engine:
            ends = [engine.log("t", partition).offsets().log_end for partition in range(LOGS)]
            assert ends == [4 + partition for partition in range(LOGS)]
        folder_contents.append(contents(folder))
    assert folder_contents[0] == folder_contents[1] == folder_contents[2]


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_is_the_sum_over_all_logs(copy: Path, threads: int) -> None:
    sizes = [path.stat().st_size for path in copy.glob("t-*/*.log")]
    heard: list[tuple[int, int]] = []
    with stratalog.open_engine(copy, config=settings(threads), progress=lambda *step: heard.append(step)):
        pass
    assert heard == sorted(set(heard))
    done_bytes, total = heard[-1]
    assert total == sum(sizes)
    assert 0 < done_bytes < total  # the incomplete batches are not counted


def test_a_log_that_cannot_be_loaded_is_logged_and_does_not_block_others(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (copy / "t-2" / "leader-epoch-checkpoint").write_bytes(b"not a number")
    with stratalog.open_engine(copy, config=settings(3)) as engine:
        for partition in range(LOGS):
            if partition == 2:
                with pytest.raises(CorruptCheckpointError):
                    engine.log("t", partition)
            else:
                assert engine.log("t", partition).offsets().log_end == 4 + partition
    logged = [log_record.getMessage() for log_record in caplog.records if log_record.levelname == "ERROR"]
    assert len(logged) == 1
    assert "log=t-2" in logged[0]
    assert "leader-epoch-checkpoint" in logged[0]


class UnexpectedErrorVfs(PosixVfs):
    """File system that raises an unexpected error for one log."""

    def __init__(self) -> None:
        self.left: set[int] = set()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        if "/t-3/" in path and path.endswith(".log"):
            raise RuntimeError("nobody expects this")
        descriptor = super().open(path, write=write, create=create)
        self.left.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.left.discard(descriptor)
        super().close(descriptor)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_unexpected_error_ends_opening_and_leaves_nothing_open(copy: Path, threads: int) -> None:
    files = UnexpectedErrorVfs()
    with pytest.raises(RuntimeError, match="nobody expects"):
        stratalog.open_engine(copy, config=settings(threads), env=Env(files=files))
    assert files.left == set()
    with stratalog.open_engine(copy) as engine:
        assert engine.log("t", 3).offsets().log_end == 7


def test_producers_are_forgotten_after_the_time_that_is_set(tmp_path: Path, bed: LogBed) -> None:
    """The timestamps of the producer's records count, as in Kafka."""
    folder, clock = tmp_path / "data", ManualClock()
    stamp = records(1)[0].timestamp_ms
    clock.advance_ms(stamp - clock.now_ms())
    env = Env(clock=clock)
    with stratalog.open_engine(folder, env=env) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append_as_leader(bed.batch(0, records(1), producer=(7, 0, 0)))
    for waited_ms, expected in ((999, True), (1, False)):
        clock.advance_ms(waited_ms)
        with stratalog.open_engine(folder, env=env, config={"producer.id.expiration.ms": 1000}) as engine:
            assert engine.log("t", 0).maintenance.has_producers is expected
