"""The tutorial runs from its first line to its last, in Python and on the command line, with the output that it shows."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from stratalog.cli.app import run

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
INSTALLING = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(?P<prints>This prints:\n\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for library in ("pyarrow", "duckdb"):
        pytest.importorskip(library)
    names = dict[str, object]()
    printed, commands = "", list[str]()
    for block in BLOCK.finditer(TUTORIAL.replace("/tmp/tutorial", str(tmp_path))):  # noqa: S108 - the page's folder
        if block["language"] == "python":
            exec(block["text"], names)  # noqa: S102 - our own page
            printed = capsys.readouterr().out
        elif block["prints"]:
            assert printed == block["text"]
        else:
            for line in block["text"].splitlines():
                program, *arguments = shlex.split(line)
                assert program == "stratalog"
                assert run(arguments) == 0, line
                commands.append(capsys.readouterr().out)
    described = next(text for text in commands if "local log start" in text)
    assert re.findall(r"^ +0 +0 +3,000 ", described, re.MULTILINE), described
    assert described.count("remote") >= 3
    sums = next(text for text in commands if "records" in text and "day" in text)
    assert re.findall(r"^ +(\d) +1,?000", sums, re.MULTILINE) == ["0", "1", "2"]


def test_all_extras_are_described() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.*?) \|", INSTALLING, re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == set(extras)
