"""Cases, measured in rounds: each round takes a sample of every side, so a disturbance affects all sides."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.sides import Sample, Side


@dataclass(frozen=True, slots=True)
class Plan:
    """Durations of rounds, samples and warm-up.

    Attributes:
        rounds: samples of each side.
        sample_s: about how long a sample takes; a slow call takes longer.
        warm_up_s: how long a side works before the first round.
    """

    rounds: int = 9
    sample_s: float = 0.05
    warm_up_s: float = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """The same work, done by several sides.

    Attributes:
        name: words with slashes, unique in a run; ``--only`` looks for parts of it.
        title: for people.
        sides: at least one.
        records: of one call; 0 where bytes are what counts.
        bytes: of one call.
    """

    name: str
    title: str
    sides: Sequence[Side]
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Samples of one side: the mean of one call in each round, and the number of calls in a round."""

    samples: tuple[Sample, ...]
    calls: int

    @property
    def wall_s(self) -> float:
        """The median."""
        return median(sample.wall_s for sample in self.samples)

    @property
    def cpu_s(self) -> float:
        """The median."""
        return median(sample.cpu_s for sample in self.samples)

    @property
    def spread(self) -> float:
        """From the fastest round to the slowest, as a part of the median."""
        walls = [sample.wall_s for sample in self.samples]
        return (max(walls) - min(walls)) / self.wall_s


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed of one side relative to another: 2 is twice as fast.

    Attributes:
        wall: of the medians.
        cpu: the same for processor time.
        low: of the worst round.
        high: of the best round.
    """

    wall: float
    cpu: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Result:
    """A case and what its sides showed, by name."""

    case: Case
    figures: dict[str, Figures]

    def ratio(self, side: str, peer: str) -> Ratio:
        """Return the speed of a side relative to ``peer``."""
        one, other = self.figures[side], self.figures[peer]
        each = [theirs.wall_s / ours.wall_s for ours, theirs in zip(one.samples, other.samples, strict=True)]
        return Ratio(other.wall_s / one.wall_s, other.cpu_s / max(one.cpu_s, 1e-12), min(each), max(each))


def measure(case: Case, plan: Plan) -> Result:
    """Check every side, warm it up, and take the samples.

    What exists before a case is kept from the garbage collector while the clocks run: it then walks what the sides make,
    not what the benchmark holds.

    Raises:
        WrongOutcomeError: a side does not do the work.
    """
    for side in case.sides:
        side.check()
    gc.collect()
    gc.freeze()
    try:
        calls = {side.name: _warmed_up(side, plan) for side in case.sides}
        samples: dict[str, list[Sample]] = {side.name: [] for side in case.sides}
        for turn in range(plan.rounds):
            for side in case.sides if turn % 2 == 0 else reversed(case.sides):
                count = calls[side.name]
                samples[side.name].append(side.sample(count).per_call(count))
    finally:
        gc.unfreeze()
    return Result(case, {name: Figures(tuple(found), calls[name]) for name, found in samples.items()})


def _warmed_up(side: Side, plan: Plan) -> int:
    """Run the side until the warm-up time has passed, and return the number of calls of a sample."""
    left_s, calls = plan.warm_up_s * side.warm_up_times, 1
    while True:
        sample = side.sample(calls)
        left_s -= sample.wall_s
        wanted = round(plan.sample_s * calls / max(sample.wall_s, 1e-9))
        calls = max(1, min(wanted, calls * 10))
        if left_s <= 0:
            return calls
