"""The examples of the README work as they are written."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import pytest

if TYPE_CHECKING:
    import click

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
    from stratalog.cli.own_commands import OWN_COMMANDS  # noqa: PLC0415 - click is an extra
    from stratalog_spark.commands import spark  # noqa: PLC0415 - as above

    block = README.partition("## The command\n\n```\nstratalog ")[2].partition("\n```")[0]
    named = dict[str, list[str]]()
    for part in re.split(r" \| |\n", block):
        command, *rest = part.split()
        named[command] = rest[0].split("|") if rest else []
    commands = {**{name: own.load() for name, own in OWN_COMMANDS.items()}, "spark": spark}  # that one is a plugin's
    groups = {name: set(group.commands) for name, group in commands.items() if is_group(group)}
    assert named.keys() == commands.keys()
    assert {name: set(named[name]) for name in groups} == groups


def is_group(command: object) -> TypeGuard[click.Group]:
    return hasattr(command, "commands")


def test_all_extras_are_named() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"`([\w-]+)`", README.partition("Extras of the package: ")[2].partition("\n\n")[0])
    assert set(named) == set(extras)


@pytest.mark.parametrize("command", ["demo", "test"])
def test_the_scripts_are_executable(command: str) -> None:
    assert f"scripts/{command} " in README
    assert (ROOT / "scripts" / command).stat().st_mode & 0o111
