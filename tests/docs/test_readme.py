"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LANGUAGE_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names = dict[str, object]()
    for example in LANGUAGE_BLOCK.findall(README):
        exec(compile(example, "<example of the README>", "exec"), names)  # noqa: S102 - our own text
    assert capsys.readouterr().out == f"offsets 0 to 9\n{[b'k%d' % i for i in range(5, 10)]}\ncopied 10\n"


def test_the_commands_are_those_that_there_are() -> None:
    from stratalog.cli.app import app  # noqa: PLC0415 - click is an extra

    block = README.partition("## The command\n\n```\nstratalog ")[2].partition("\n```")[0]
    named = {part.split()[0] for line in block.splitlines() for part in line.split(" | ")}
    assert named - {"spark"} == set(app.commands)  # that one is a plugin's


@pytest.mark.parametrize("command", ["demo", "test"])
def test_the_scripts_are_executable(command: str) -> None:
    assert f"scripts/{command} " in README
    assert (ROOT / "scripts" / command).stat().st_mode & 0o111
