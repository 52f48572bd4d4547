"""The example of the README runs, and the demo prints the lines that the README shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratalog.cli.app import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "bucket").mkdir()
    exec(example.replace("s3://bucket/prefix", (tmp_path / "bucket").as_uri()), {})  # noqa: S102 - our own text
    assert capsys.readouterr().out == "[b'v']\n"


def test_the_demo_prints_the_lines_of_the_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (excerpt,) = re.findall(r"^```\n(starting a local S3 server\n.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "bucket").mkdir()
    assert run(["demo", "--records", "1000", "--tier", (tmp_path / "bucket").as_uri()]) == 0
    expected = excerpt.replace("1,000,000", "1,000").removeprefix("starting a local S3 server\n")
    assert capsys.readouterr().err == expected


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 100, "what does not fit belongs on a page of docs/"


@pytest.mark.parametrize("command", ["demo", "test"])
def test_the_scripts_are_executable(command: str) -> None:
    text = README if command == "demo" else (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"scripts/{command}" in text
    assert (ROOT / "scripts" / command).stat().st_mode & 0o111
