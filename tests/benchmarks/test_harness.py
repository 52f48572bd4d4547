"""The harness of all benchmarks: interleaved rounds, ratios of medians, workers, and verdicts that can fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import (
    Bound,
    Case,
    Figures,
    LocalSide,
    PreparedSide,
    Rate,
    Result,
    Sample,
    Side,
    UnsupportedPlatformError,
    Worker,
    WorkerError,
    WorkerSide,
    WrongOutcomeError,
    ceiling,
    measure,
    parse_options,
    peak_of,
)
from harness.rounds import Plan

WORKER = """
import sys
sys.path.insert(0, {benchmarks!r})
from harness import Job, serve

def job_of(name, data):
    if name == "fails":
        raise ValueError("this job\\nfails")
    return Job(lambda: None, lambda: name.encode() + data)

serve(job_of)
"""


class RecordingSide(Side):
    """Side that notes each call in ``notes``, and reports a fixed time for each call."""

    def __init__(self, name: str, notes: list[str], wall_s: float) -> None:
        self.name, self._notes, self._wall_s = name, notes, wall_s

    def check(self) -> None:
        self._notes.append(f"check {self.name}")

    def sample(self, calls: int) -> Sample:
        self._notes.append(self.name)
        return Sample(self._wall_s * calls, self._wall_s * calls / 2)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    benchmarks = str(Path(__file__).parents[2] / "benchmarks")
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(benchmarks=benchmarks))
    return Worker([sys.executable, str(script)])


def result(**walls: tuple[float, ...]) -> Result:
    """Return a result with these wall times for each side. The processor time is half of the wall time."""
    figures = {name: Figures(tuple(Sample(wall, wall / 2) for wall in times), 1) for name, times in walls.items()}
    return Result(Case("c", "", (), 0, 0), figures)


def test_sides_are_checked_first_and_then_measured_alternately() -> None:
    notes: list[str] = []
    case = Case("c", "", [RecordingSide("a", notes, 2.0), RecordingSide("b", notes, 1.0)], 1, 1)
    measured = measure(case, Plan(rounds=3, sample_s=4.0, warm_up_s=0))
    assert notes == ["check a", "check b", "a", "b", "a", "b", "b", "a", "a", "b"]
    assert {name: figures.calls for name, figures in measured.figures.items()} == {"a": 2, "b": 4}
    assert measured.ratio("b", "a").wall == 2.0


def test_a_side_that_does_something_else_is_not_measured() -> None:
    def refuse() -> None:
        raise WrongOutcomeError("something else")

    with pytest.raises(WrongOutcomeError):
        measure(Case("c", "", [LocalSide("a", list, refuse)], 1, 1), Plan(rounds=1))


def test_a_local_side_repeats_its_work_as_often_as_requested() -> None:
    calls: list[int] = []
    sample = LocalSide("a", lambda: calls.append(1), lambda: None).sample(7)
    assert len(calls) == 7
    assert sample.wall_s > 0


def test_a_prepared_side_has_what_it_needs_for_as_many_calls_as_are_made() -> None:
    notes: list[str] = []

    @contextmanager
    def prepared(calls: int) -> Iterator[Callable[[], object]]:
        notes.append(f"prepare {calls}")
        yield lambda: notes.append("call")
        notes.append("remove")

    assert PreparedSide("a", prepared, lambda: None).sample(2).wall_s > 0
    assert notes == ["prepare 2", "call", "call", "remove"]


@pytest.mark.parametrize(("at_least", "reached"), [(50.0, True), (51.0, False)])
def test_a_rate_counts_the_records_of_a_call(at_least: float, reached: bool) -> None:  # noqa: FBT001 - a parameter of the test
    measured = result(ours=(2.0,))
    case = Case("c", "", (), records=100, bytes=0)
    verdict = Rate("t", "c", "ours", at_least).verdict({"c": Result(case, measured.figures)})
    assert (verdict.reached, verdict.figure) == (reached, 50.0)
    assert Rate("t", "c", "theirs", at_least).verdict({"c": measured}).reached is None


def test_a_ratio_is_that_of_medians_with_the_range_of_rounds() -> None:
    ratio = result(ours=(1.0, 2.0, 9.0), theirs=(4.0, 4.0, 9.0)).ratio("ours", "theirs")
    assert (ratio.wall, ratio.cpu, ratio.low, ratio.high) == (2.0, 2.0, 1.0, 4.0)


@pytest.mark.parametrize(("at_least", "reached"), [(2.0, True), (2.1, False)])
def test_a_bound_is_reached_or_not(at_least: float, reached: bool) -> None:  # noqa: FBT001 - a parameter of the test
    verdict = Bound("t", "c", "ours", "theirs", at_least).verdict({"c": result(ours=(1.0,), theirs=(2.0,))})
    assert (verdict.reached, verdict.figure) == (reached, 2.0)
    assert verdict.word == ("ok" if reached else "NOT REACHED")


@pytest.mark.parametrize("results", [{}, {"c": result(ours=(1.0,))}])
def test_a_bound_without_its_peer_is_reported(results: dict[str, Result]) -> None:
    verdict = Bound("t", "c", "ours", "theirs", 1).verdict(results)
    assert (verdict.reached, verdict.word) == (None, "not measured")
    assert ("theirs" in verdict.measured) == bool(results)


def test_a_ceiling_holds_up_to_itself() -> None:
    assert ceiling("t", "c", "n", 4.0, 4.0).reached is True
    assert ceiling("t", "c", "n", 4.1, 4.0).reached is False


def test_a_worker_does_its_jobs(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"-data")
    outcomes: list[bytes] = []
    with worker:
        worker.load("in", tmp_path / "input")
        side = WorkerSide("w", worker, "job", "in", tmp_path, outcomes.append)
        side.check()
        assert side.sample(3).wall_s > 0
    assert outcomes == [b"job-data"]


def test_a_job_that_fails_is_an_error_here_and_the_worker_continues(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"")
    outcomes: list[bytes] = []
    with worker:
        worker.load("in", tmp_path / "input")
        with pytest.raises(WrongOutcomeError, match="this job fails"):
            WorkerSide("w", worker, "fails", "in", tmp_path, outcomes.append).check()
        with pytest.raises(WorkerError, match="not understood"):
            worker.ask("dance")
        assert worker.ask("sample", "job", "in", 1)
    assert not outcomes


def test_a_worker_that_has_ended_is_an_error() -> None:
    with Worker([sys.executable, "-c", ""]) as worker, pytest.raises(WorkerError, match="ended"):
        worker.ask("sample", "job", "in", 1)


def test_a_missing_worker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="cannot be started"):
        Worker([str(tmp_path / "nobody")])


def test_the_peak_counts_memory_that_was_released_later() -> None:
    try:
        peak = peak_of(lambda: len(bytearray(b"x") * (64 << 20)))
    except UnsupportedPlatformError:
        pytest.skip("this system does not tell the peak of memory")
    assert peak.result == 64 << 20
    assert peak.bytes > 60 << 20


def test_only_chooses_by_parts_of_names() -> None:
    options = parse_options("", ["--only", "scan/", "--only", "zstd", "--rounds", "3"])
    assert options.plan.rounds == 3
    assert [options.wants(name) for name in ("scan/x", "encode/zstd", "encode/x")] == [True, True, False]


def test_no_rounds_are_too_few() -> None:
    with pytest.raises(SystemExit):
        parse_options("", ["--rounds", "0"])
