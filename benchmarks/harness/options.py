"""The command line that all benchmarks have."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from harness.rounds import Plan

_QUICK = Plan(rounds=2, sample_s=0.001, warm_up_s=0.001)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line.

    Attributes:
        plan: number and durations of samples.
        json: True to print one JSON object a line instead of tables.
        quick: True for tiny inputs, which show that everything works; the figures mean nothing.
        full: True for every combination and the large sizes.
        only: parts of names of the selected cases; empty selects all cases.
    """

    plan: Plan
    json: bool
    quick: bool
    full: bool
    only: tuple[str, ...]

    def wants(self, name: str) -> bool:
        """True if a case is selected."""
        return not self.only or any(part in name for part in self.only)


def parse_options(description: str, arguments: list[str] | None = None) -> Options:
    """Parse the command line. If an argument is wrong, print the usage and exit."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of tables")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"samples of each side, {Plan().rounds} if not said")
    parser.add_argument("--quick", action="store_true", help="tiny inputs: does it work? the figures mean nothing")
    parser.add_argument("--full", action="store_true", help="every combination, and the large sizes")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="only cases with PART in the name")
    parsed = parser.parse_args(arguments)
    if parsed.rounds is not None and parsed.rounds < 1:
        parser.error("--rounds must be at least 1")
    plan = _QUICK if parsed.quick else Plan()
    if parsed.rounds is not None:
        plan = Plan(parsed.rounds, plan.sample_s, plan.warm_up_s)
    return Options(plan, parsed.json, parsed.quick, parsed.full, tuple(parsed.only))
