"""Cases, measured in rounds. Each round takes a sample of every side, so that a disturbance affects all sides."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.sides import Sample, Side


@dataclass(frozen=True, slots=True)
class Plan:
    """Number of samples, and durations of samples and warm-up.

    Attributes:
        rounds: number of samples of each side.
        sample_s: approximate duration of a sample in seconds; longer if a single call takes longer.
        warm_up_s: least duration of the warm-up of a side before the first round, in seconds.
    """

    rounds: int = 9
    sample_s: float = 0.05
    warm_up_s: float = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """The same work, done by several sides.

    Attributes:
        name: words with slashes, unique in a run; ``--only`` selects cases by parts of it.
        title: description for people.
        sides: at least one.
        records: number of records in one call; 0 if the report shall show only bytes per second.
        bytes: number of bytes in one call.
    """

    name: str
    title: str
    sides: Sequence[Side]
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Samples of one side: for each round the mean time of a call, and the number of calls in a sample."""

    samples: tuple[Sample, ...]
    calls: int

    @property
    def wall_s(self) -> float:
        """Median wall time of a call in seconds."""
        return median(sample.wall_s for sample in self.samples)

    @property
    def cpu_s(self) -> float:
        """Median processor time of a call in seconds."""
        return median(sample.cpu_s for sample in self.samples)

    @property
    def spread(self) -> float:
        """Difference between the slowest and the fastest round, divided by the median."""
        walls = [sample.wall_s for sample in self.samples]
        return (max(walls) - min(walls)) / self.wall_s


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed of one side relative to another: 2 is twice as fast.

    Attributes:
        wall: ratio of the medians of wall time.
        cpu: ratio of the medians of processor time.
        low: smallest ratio of wall times in a round.
        high: largest ratio of wall times in a round.
    """

    wall: float
    cpu: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Result:
    """A case, and the figures of its sides by their names."""

    case: Case
    figures: dict[str, Figures]

    def ratio(self, side: str, peer: str) -> Ratio:
        """Return the speed of a side relative to ``peer``."""
        own_figures, peer_figures = self.figures[side], self.figures[peer]
        round_ratios = [
            peer_sample.wall_s / own_sample.wall_s
            for own_sample, peer_sample in zip(own_figures.samples, peer_figures.samples, strict=True)
        ]
        return Ratio(
            peer_figures.wall_s / own_figures.wall_s,
            peer_figures.cpu_s / max(own_figures.cpu_s, 1e-12),
            min(round_ratios),
            max(round_ratios),
        )


def measure(case: Case, plan: Plan) -> Result:
    """Check every side, warm it up, and take the samples.

    During the measurement, the garbage collector ignores objects that existed before. So it visits the objects of the
    sides, but not those of the benchmark.

    Raises:
        WrongOutcomeError: a side does not do the work.
    """
    for side in case.sides:
        side.check()
    gc.collect()
    gc.freeze()
    try:
        calls = {side.name: _warm_up(side, plan) for side in case.sides}
        samples: dict[str, list[Sample]] = {side.name: [] for side in case.sides}
        for turn in range(plan.rounds):
            for side in case.sides if turn % 2 == 0 else reversed(case.sides):
                count = calls[side.name]
                samples[side.name].append(side.sample(count).per_call(count))
    finally:
        gc.unfreeze()
    return Result(case, {name: Figures(tuple(side_samples), calls[name]) for name, side_samples in samples.items()})


def _warm_up(side: Side, plan: Plan) -> int:
    """Run the side until the warm-up time has passed, and return the number of calls for a sample."""
    remaining_s, calls = plan.warm_up_s * side.warm_up_times, 1
    while True:
        sample = side.sample(calls)
        remaining_s -= sample.wall_s
        target_calls = round(plan.sample_s * calls / max(sample.wall_s, 1e-9))
        calls = max(1, min(target_calls, calls * 10))
        if remaining_s <= 0:
            return calls
