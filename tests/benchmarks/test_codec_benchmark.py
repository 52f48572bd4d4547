"""The codec benchmark checks the outcome of every side, and its report can be parsed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from codec_parts import java
from codec_parts.cases import TARGET, bounds, operations_on, shapes
from codec_parts.formats import name_here
from codec_parts.hostile import KINDS
from codec_parts.libraries import LIBRARIES, library_bounds
from codec_parts.operations import Operation, check
from codec_parts.ours import Stratalog
from codec_parts.python_peers import python_peers
from codec_parts.workloads import Shape, Workload, load, make
from harness import JavaMissingError, WrongOutcomeError, java_worker
from quick_run import quick_run


@pytest.fixture(scope="module")
def report() -> list[dict[str, Any]]:
    return quick_run("codec.py")


@pytest.fixture(scope="module")
def workload() -> Workload:
    return make(Shape(10, 10, headers=1), quick=True)


def test_it_begins_with_the_machine(report: list[dict[str, Any]]) -> None:
    assert report[0]["kind"] == "machine"
    assert report[0]["load"] >= 0
    assert report[0]["packages"]["stratalog"]


def test_every_case_has_figures_of_stratalog(report: list[dict[str, Any]]) -> None:
    figures = {(line["case"], line["side"]): line for line in report if line["kind"] == "figures"}
    for shape in shapes(quick=True, full=False):
        for operation in operations_on(shape):
            assert (f"{operation}/{shape.name}", name_here()) in figures
    assert all(line["wall_s"] > 0 and line["rounds"] == 2 and line["calls"] > 0 for line in figures.values())


@pytest.mark.parametrize("peer", ["aiokafka", "kafka-python"])
def test_a_client_takes_part_where_it_is_installed(peer: str, report: list[dict[str, Any]]) -> None:
    missing = [line["reason"] for line in report if line["kind"] == "missing"]
    if not report[0]["packages"][peer]:
        assert any(reason.startswith(peer) for reason in missing)
        pytest.skip(f"{peer} is not installed")
    cases = {line["case"] for line in report if line["kind"] == "figures" and line["side"] == peer}
    for operation in set(Operation) - {Operation.ARROW, Operation.ENCODE_COLUMNS}:
        assert f"{operation}/{TARGET.name}" in cases


def test_kafkas_classes_are_measured_or_their_absence_is_explained(report: list[dict[str, Any]]) -> None:
    missing = [line["reason"] for line in report if line["kind"] == "missing"]
    sides = {line["side"] for line in report if line["kind"] == "figures"}
    assert (java.NAME in sides) != any(reason.startswith(java.NAME) for reason in missing)


def test_each_codec_is_measured_beside_its_library(report: list[dict[str, Any]]) -> None:
    figures = {(line["case"], line["side"]) for line in report if line["kind"] == "figures"}
    for name, library in LIBRARIES.items():
        assert (f"compress/{name}/{TARGET.name}", library.name) in figures
        assert (f"decompress/{name}/{TARGET.name}", library.name) in figures


def test_each_bound_has_a_verdict_or_names_the_missing_side(report: list[dict[str, Any]]) -> None:
    figures = {(line["case"], line["side"]) for line in report if line["kind"] == "figures"}
    verdict_lines = [line for line in report if line["kind"] == "verdict" and "memory" not in line["target"]]
    expected = [*bounds(), *library_bounds(TARGET)]
    assert len(verdict_lines) == len(expected)
    for bound, verdict in zip(expected, verdict_lines, strict=True):
        assert (verdict["target"], verdict["case"]) == (bound.target, bound.case)
        measured = {(bound.case, bound.side), (bound.case, bound.peer)} <= figures
        assert (verdict["reached"] is not None) == measured


def test_clients_that_are_not_installed_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = [name for name in sys.modules if name.partition(".")[0] in {"aiokafka", "kafka"}]
    for name in {"aiokafka", "kafka", *imported}:  # Python finds imported submodules without their package
        monkeypatch.setitem(sys.modules, name, None)
    peers, missing = python_peers()
    assert [peer.name for peer in peers] == ["crc32c alone"]
    assert [reason.partition(":")[0] for reason in missing if "bench" in reason] == ["aiokafka", "kafka-python"]


def test_a_missing_jdk_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match="a JDK is needed"):
        java_worker(java.PROGRAM, tmp_path)


def test_memory_is_reported_for_each_hostile_batch(report: list[dict[str, Any]]) -> None:
    cases = {line["case"] for line in report if line["kind"] == "memory"}
    if not cases:
        pytest.skip("this system does not tell the peak of memory")
    assert {f"memory/hostile/{kind.name}" for kind in KINDS} <= cases


@pytest.mark.parametrize("operation", Operation)
def test_an_outcome_that_is_not_whole_is_refused(operation: Operation, workload: Workload) -> None:
    job = Stratalog().makers()[operation](workload)
    outcome = job.outcome()
    check("whole", operation, workload, outcome)
    with pytest.raises(WrongOutcomeError, match="cut"):
        check("cut", operation, workload, outcome[:-1])


def test_a_batch_with_a_bad_crc_is_refused(workload: Workload) -> None:
    outcome = bytearray(Stratalog().makers()[Operation.ENCODE](workload).outcome())
    outcome[-1] ^= 1
    with pytest.raises(WrongOutcomeError, match="bad"):
        check("flipped", Operation.ENCODE, workload, bytes(outcome))


@pytest.mark.parametrize("shape", shapes(quick=True, full=False), ids=lambda shape: shape.name)
def test_a_worker_finds_in_a_file_what_was_written_to_it(shape: Shape) -> None:
    expected = make(shape, quick=True)
    actual = load(expected.data)
    assert (actual.codec, actual.records, actual.rows) == (expected.codec, expected.records, expected.rows)


def test_all_combinations_are_measured_when_asked_for() -> None:
    every = shapes(quick=False, full=True)
    assert len(set(every)) == len(every) == 3 * 4 * 5 + 1
    assert every[0] == TARGET
    assert set(shapes(quick=False, full=False)) <= set(every)
