"""Each ``stratalog`` command on a page has a name, options and values that the command line accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stratalog.cli.app import app
from stratalog.cli.own_commands import OWN_COMMANDS
from stratalog_gateway.serve_command import serve
from stratalog_gateway.users_command import users
from stratalog_spark.commands.commands import spark

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
    *sorted((ROOT / "docs" / "formats").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
COMMANDS: dict[str, click.Command] = {
    **{name: own.load() for name, own in OWN_COMMANDS.items()},
    "serve": serve,
    "spark": spark,
    "users": users,
}  # the last three are commands of plugins
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`stratalog (?![ -])([^`]+)`")


def shown(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield the commands of ``page`` without the word ``stratalog``.

    The second value is True for a command in a block, which must be complete, and False for a command in a sentence.
    """
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        if not block["language"]:
            yield from ((line, True) for line in re.findall(r"^stratalog (.+)$", block["text"], re.MULTILINE))
    yield from ((line, False) for line in INLINE.findall(BLOCK.sub("", text)))


def parse(line: str, *, is_whole: bool) -> None:
    """Raise if ``line`` is not a valid command. If ``is_whole`` is True, it must also have all its arguments."""
    words = shlex.split(re.sub(r"[\[\]]|\.\.\.| \| .*", " ", line), comments=True)
    command: click.Command = click.Group(commands=COMMANDS)
    while isinstance(command, click.Group):
        if not words and not is_whole:
            return
        name = words.pop(0)
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    context = click.Context(command, info_name=command.name, **app.context_settings)
    values, extra_words, _ = command.make_parser(context).parse_args(words)
    assert not extra_words, f"too many arguments: {extra_words}"
    for parameter in command.get_params(context):
        value = values.get(parameter.name or "")
        if isinstance(parameter, click.Argument) and parameter.required and is_whole:
            assert value is not None and value != (), f"{parameter.name} is missing"  # noqa: PT018 - one question
        if isinstance(value, str) and not value.isupper() and not isinstance(parameter.type, (click.Path, click.File)):
            parameter.type_cast_value(context, value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_accepted(page: Path) -> None:
    problems = []
    for line, is_whole in shown(page):
        try:
            parse(line, is_whole=is_whole)
        except (click.ClickException, AssertionError) as error:
            problems.append(f"stratalog {line}: {error}")
    assert problems == []


@pytest.mark.parametrize("name", OWN_COMMANDS)
def test_the_help_of_a_command_ends_with_an_example_that_is_accepted(name: str) -> None:
    command = OWN_COMMANDS[name].load()
    parts: dict[str, click.Command] = getattr(command, "commands", {})
    for words, subcommand in {
        name: command,
        **{f"{name} {part}": subcommand for part, subcommand in parts.items()},
    }.items():
        assert subcommand.epilog
        example = subcommand.epilog.splitlines()[-1].partition("stratalog ")[2]
        assert example.startswith(f"{words} ") or example == words
        parse(example, is_whole=True)
