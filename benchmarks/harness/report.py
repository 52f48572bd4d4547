"""Reports of results: tables for people, or one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from harness.bounds import Verdict
from harness.machine import Machine
from harness.rounds import Result


class Reporter:
    """Prints each result as soon as it is measured.

    Args:
        as_json: True to print one JSON object a line; its ``kind`` is machine, missing, figures, memory, number or
            verdict.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def machine(self, machine: Machine) -> None:
        """Report the machine."""
        if self._as_json:
            self._line("machine", **machine.as_dict())
        else:
            print("\n".join(machine.lines()))

    def missing(self, reasons: Iterable[str]) -> None:
        """Print the reasons why sides cannot be measured."""
        for reason in reasons:
            if self._as_json:
                self._line("missing", reason=reason)
            else:
                print(f"missing: {reason}")

    def result(self, result: Result) -> None:
        """Print the figures of a case, with the speed of its first side relative to each other side."""
        if self._as_json:
            self._figures(result)
            return
        case = result.case
        print(f"\n{case.title}  [{case.name}]")
        unit = "M rec/s" if case.records else ""
        print(f"  {'':<32}{unit:>10}{'MB/s':>10}{'spread':>8}{'wall ms':>10}{'cpu ms':>10}  first is faster by")
        first = next(iter(result.figures))
        for name, figures in result.figures.items():
            ratio = "" if name == first else f"{result.ratio(first, name).wall:.3g} x"
            speed = f"{case.records / figures.wall_s / 1e6:.3g}" if case.records else ""
            print(
                f"  {name:<32}{speed:>10}{case.bytes / figures.wall_s / 1e6:>10,.0f}{figures.spread:>8.0%}"
                f"{figures.wall_s * 1e3:>10.3f}{figures.cpu_s * 1e3:>10.3f}  {ratio}"
            )

    def memory(self, name: str, title: str, mib: float) -> None:
        """Report the memory that a case needs in addition to its limits."""
        if self._as_json:
            self._line("memory", case=name, title=title, mib=mib)
        else:
            print(f"  {title:<60}{mib:>8.1f} MiB  [{name}]")

    def number(self, name: str, title: str, value: float, unit: str) -> None:
        """Print a number that was counted or measured once, with its unit."""
        if self._as_json:
            self._line("number", case=name, title=title, value=value, unit=unit)
        else:
            print(f"  {title:<84}{value:>14,.6g} {unit} [{name}]")

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Print the verdicts, grouped by target."""
        if self._as_json:
            for verdict in verdicts:
                self._line(
                    "verdict",
                    target=verdict.target,
                    case=verdict.case,
                    measured=verdict.measured,
                    bound=verdict.bound,
                    figure=verdict.figure,
                    reached=verdict.reached,
                )
            return
        if not verdicts:
            return
        print(f"\n{'targets':<124}{'bound':<22}")
        for target, group in groupby(verdicts, lambda verdict: verdict.target):
            print(target)
            for verdict in group:
                print(f"  {verdict.case:<36} {verdict.measured:<84} {verdict.bound:<21} {verdict.word}")

    def _figures(self, result: Result) -> None:
        case = result.case
        for name, figures in result.figures.items():
            self._line(
                "figures",
                case=case.name,
                side=name,
                records=case.records,
                bytes=case.bytes,
                rounds=len(figures.samples),
                calls=figures.calls,
                wall_s=figures.wall_s,
                cpu_s=figures.cpu_s,
                wall_low_s=min(sample.wall_s for sample in figures.samples),
                wall_high_s=max(sample.wall_s for sample in figures.samples),
            )

    @staticmethod
    def _line(kind: str, **fields: object) -> None:
        print(json.dumps({"kind": kind, **fields}), flush=True)
