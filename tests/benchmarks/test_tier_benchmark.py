"""The benchmark of a tier runs, and reports a figure for each bound."""

from __future__ import annotations

import sys

import pytest

from harness import KAFKA
from quick_run import quick_run, verdicts
from tier_parts import first, kafka, memory, offloading, reading

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads the kernel's accounts")
ALONE = [
    offloading.OFFLOAD,
    *(reading.COLD_S3, reading.COLD_DISK, reading.COLD_FILE, reading.WARM),
    *(memory.UPLOAD, memory.READER),
]
BESIDE_KAFKA = [kafka.SMALL, kafka.READ, kafka.CONSUME]


def only(cases: list[str]) -> list[str]:
    return [word for case in cases for word in ("--only", case)]


def test_every_bound_has_a_figure() -> None:
    cases = {line["case"]: line for line in verdicts(quick_run("tier.py", *only([*ALONE, first.FIRST])))}
    promised = [f"{first.FIRST}/attached", f"{first.FIRST}/warm"]
    assert set(cases) == {*ALONE, *promised}
    assert all(cases[name]["reached"] for name in (*promised, memory.UPLOAD, memory.READER))
    assert all(cases[name]["figure"] > 0 for name in cases if "memory" not in name)


@pytest.mark.oracle
def test_a_kafka_with_tiered_storage_is_measured_or_its_absence_is_explained() -> None:
    report = quick_run("tier.py", *only(BESIDE_KAFKA))
    missing = [line["reason"] for line in report if line["kind"] == "missing"]
    figures = {line["case"]: line["figure"] for line in verdicts(report)}
    assert set(figures) == set(BESIDE_KAFKA)
    assert all(reason.startswith(KAFKA) for reason in missing)
    assert all((figure is None) == bool(missing) for figure in figures.values())
