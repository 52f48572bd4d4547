"""Arguments as shells pass them: bytes that are not UTF-8, empty variables, and numbers that are too large."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from command_runs import items_of
from stratalog import Record, open_engine
from stratalog.cli.app import run

KEY = b"\xffk"
TYPED = os.fsdecode(KEY)


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    """Return options for a directory with the topic ``orders``. The key of its record 1 is not UTF-8."""
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(key=key, value=b"v") for key in (b"a", KEY, b"b")])
        engine.log("orders", 0).roll()
    return ["--dir", str(tmp_path / "data")]


def test_a_key_need_not_be_text(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert [item["offset"] for item in items_of(capsys, "consume", "orders", *place, "--key", TYPED)] == [1]
    assert any("record" in item for item in items_of(capsys, "why-kept", "orders", "0", *place, "--key", TYPED))
    assert len(items_of(capsys, "erase", "orders", *place, "--key", TYPED)) == 1
    assert [item["offset"] for item in items_of(capsys, "consume", "orders", *place)] == [0, 2]


def test_a_group_must_be_text(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "orders", *place, "--group", TYPED]) == 2
    assert "is not Unicode text" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["consume", "orders", "--count"], ["tier", "log", "file:///t", "orders", "0", "--limit"]]
)
def test_a_number_beyond_all_bounds(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "99999999999999999999"]) == 2
    assert "is not in the range" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["recover", ""],
        ["verify", "", "--repair"],
        ["dump", ""],
        ["retention", "--dir", ""],
        ["archive", "", "file:///tier"],
        ["attach", "--dir", "", "file:///tier"],
        ["restore", "file:///tier", ""],
        ["topics", "list", "--dir", "file://"],
        ["attach", "--dir", "file://", "memory://tier"],
    ],
)
def test_an_empty_path_is_not_the_working_directory(
    arguments: list[str], place: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place[1])
    before = sorted(path.name for path in Path().iterdir())
    assert run(arguments) == 2
    assert "error" in capsys.readouterr().err.lower()
    assert sorted(path.name for path in Path().iterdir()) == before


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_must_be_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str) -> None:
    place = str(tmp_path)
    for arguments in (
        ["tier", "cost", "--write-rate", number],
        ["archive", place, "file:///tier", "--interval", number],
        ["top", place, "--once", "--interval", number],
    ):
        assert run(arguments) == 2
        assert number in capsys.readouterr().err
