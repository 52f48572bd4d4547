"""Bounds: required results of a benchmark, and verdicts on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from harness.rounds import Result


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound and the measured result.

    Attributes:
        target: title of the target that the bound belongs to.
        case: name of the case.
        measured: the measured result for people, or the reason why there is none.
        bound: the bound, for people.
        figure: the number that is compared with the bound; None if nothing was measured.
        reached: True if the bound is met; None if nothing was measured.
    """

    target: str
    case: str
    measured: str
    bound: str
    figure: float | None
    reached: bool | None

    @property
    def word(self) -> str:
        """The verdict as shown in a table."""
        return "not measured" if self.reached is None else "ok" if self.reached else "NOT REACHED"


@dataclass(frozen=True, slots=True)
class _Pair(ABC):
    """A bound that compares one side of a case with another.

    Attributes:
        target: title of the target that the bound belongs to.
        case: name of the case.
        side: name of the side that must meet the bound.
        peer: name of the side that it is compared with.
    """

    target: str
    case: str
    side: str
    peer: str

    def verdict(self, results: Mapping[str, Result]) -> Verdict:
        """Compare the results with this bound."""
        result = results.get(self.case)
        missing = [name for name in (self.side, self.peer) if result is not None and name not in result.figures]
        if result is None or missing:
            reason = f"{self.side}: no figures of {', '.join(missing) or 'any side'}"
            return Verdict(self.target, self.case, reason, self._bound(), None, None)
        figure, measured, reached = self._compare(result)
        return Verdict(self.target, self.case, f"{self.side}: {measured}", self._bound(), figure, reached)

    @abstractmethod
    def _bound(self) -> str:
        """Return the bound, for people."""

    @abstractmethod
    def _compare(self, result: Result) -> tuple[float, str, bool]:
        """Return the figure, the figure as text, and True if the bound is reached."""


@dataclass(frozen=True, slots=True)
class Bound(_Pair):
    """Lower bound for the speed of one side relative to another in one case.

    Attributes:
        at_least: the least ratio of the medians of wall time: 2 requires that ``side`` is twice as fast as ``peer``.
    """

    at_least: float

    def _bound(self) -> str:
        return f"{self.at_least:g} x {self.peer}"

    def _compare(self, result: Result) -> tuple[float, str, bool]:
        ratio = result.ratio(self.side, self.peer)
        measured = f"{ratio.wall:.3g} x (rounds {ratio.low:.3g} to {ratio.high:.3g}; cpu {ratio.cpu:.3g})"
        return ratio.wall, measured, ratio.wall >= self.at_least


@dataclass(frozen=True, slots=True)
class CpuBound(_Pair):
    """Upper bound for the processor time of one side relative to another in one case.

    Attributes:
        at_most: the largest ratio of the medians of processor time.
    """

    at_most: float

    def _bound(self) -> str:
        return f"cpu {self.at_most:g} x {self.peer}"

    def _compare(self, result: Result) -> tuple[float, str, bool]:
        side_s, peer_s = result.figures[self.side].cpu_s, result.figures[self.peer].cpu_s
        share, gib = side_s / max(peer_s, 1e-12), result.case.bytes / (1 << 30)
        return share, f"cpu {share:.3g} x ({side_s / gib:.3g} s a GiB beside {peer_s / gib:.3g})", share <= self.at_most


@dataclass(frozen=True, slots=True)
class Rate:
    """Lower bound for the records per second of one side, for work that has no peer.

    Attributes:
        target: title of the target that the bound belongs to.
        case: name of the case.
        side: name of the side that must meet the bound.
        at_least: records per second, by the median of wall time.
    """

    target: str
    case: str
    side: str
    at_least: float

    def verdict(self, results: Mapping[str, Result]) -> Verdict:
        """Compare the results with this bound."""
        bound = f"{self.at_least:,.0f} a second"
        result = results.get(self.case)
        if result is None or self.side not in result.figures:
            return Verdict(self.target, self.case, f"{self.side}: no figures", bound, None, None)
        rate = result.case.records / result.figures[self.side].wall_s
        return Verdict(self.target, self.case, f"{self.side}: {rate:,.0f} a second", bound, rate, rate >= self.at_least)


def ceiling(target: str, case: str, title: str, figure_mib: float, at_most_mib: float) -> Verdict:
    """Return a verdict on memory: ``figure_mib`` must not exceed ``at_most_mib``."""
    bound = f"at most {at_most_mib:g} MiB"
    return Verdict(target, case, f"{title}: {figure_mib:.1f} MiB", bound, figure_mib, figure_mib <= at_most_mib)
