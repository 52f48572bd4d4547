"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from stratalog.spi import option_group
from stratalog.spi.commands import option_value

CALLS = list[object]()


def place(*, folder: str, depth: int) -> tuple[str, int]:
    return folder, depth


in_a_place = option_group(
    "place", place, click.option("--depth", type=int, default=3, help="How deep."), click.argument("folder")
)


@click.command()
@in_a_place
@click.option("--loud", is_flag=True)
def look(place: tuple[str, int], *, loud: bool) -> None:
    """Look there."""
    CALLS.append((place, loud))


@pytest.fixture
def run() -> Callable[..., str]:
    CALLS.clear()
    return lambda *arguments: CliRunner().invoke(look, arguments).output


def test_a_command_takes_shared_options_as_one_value(run: Callable[..., str]) -> None:
    assert run("here", "--depth", "7", "--loud") == ""
    assert run("there") == ""
    assert CALLS == [(("here", 7), True), (("there", 3), False)]


def test_help_and_mistakes_are_those_of_plain_options(run: Callable[..., str]) -> None:
    told = run("--help")
    assert "Look there." in told
    assert "How deep." in told
    assert told.index("--depth") < told.index("--loud")
    assert "Missing argument 'FOLDER'" in run()
    assert CALLS == []


def test_a_value_of_an_option_that_is_no_json_value_stays_text() -> None:
    assert option_value('{"region": "eu-north-1"}') == {"region": "eu-north-1"}
    assert option_value("true") is True
    for text in ("5", '"x"', "{", "[" * 200_000):
        assert option_value(text) == text
