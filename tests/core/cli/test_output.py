"""Output: control characters in data are escaped, and the reader of a pipe may close it at any time."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.cli.output import Output, printable

HOSTILE = b"[/x]\x1b[31m\n\xff"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a directory whose path and records contain markup and terminal control characters."""
    folder = tmp_path / "[/x]"
    with open_engine(folder) as engine:
        engine.create_topic("t")
        record = Record(timestamp_ms=0, key=HOSTILE, value="é".encode(), headers=(("h\x1b", HOSTILE),))
        engine.log("t", 0).append([record] * 500)
    return folder


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "stratalog", *map(str, arguments)]


@pytest.mark.parametrize(
    ("text", "shown"), [("plain é", "plain é"), ("a\nb", "a\\nb"), ("\x1b[1m", "\\x1b[1m"), ("\u202e", "\\u202e")]
)
def test_terminal_control_characters_are_spelt_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_cells_and_titles_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table("[/title]", ("a",), [("[/x]\x1b[31m",)])
    output = capsys.readouterr().out
    assert output.startswith("[/title]\n")
    assert "[/x]\\x1b[31m" in output


@pytest.mark.parametrize("arguments", [("consume", "t", "--dir"), ("dump", "--values")])
@pytest.mark.long
def test_records_are_one_line_each(
    hostile: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    log = hostile / "t-0" / "00000000000000000000.log"
    assert run([*arguments, str(log if arguments[0] == "dump" else hostile)]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert len([line for line in output.splitlines() if line.startswith(("0:", "|"))]) == 500


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "t", "--dir"),
        ("consume", "t", "--json", "--dir"),
        ("topics", "list", "--dir"),
        ("topics", "list", "--json", "--dir"),
    ],
)
@pytest.mark.long
def test_a_reader_that_stops_early_is_no_error(hostile: Path, arguments: tuple[str, ...]) -> None:
    with subprocess.Popen(  # noqa: S603 - our own command
        command(*arguments, hostile), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 2)])
@pytest.mark.long
def test_output_that_goes_nowhere(hostile: Path, redirection: str, code: int) -> None:
    call = command("topics", "list", "--json", "--dir", hostile)
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}  # the interpreter flushes the rest when it exits
    ended = subprocess.run(  # noqa: S603 - our own command
        ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *call],
        capture_output=True,
        text=True,
        check=False,
        env=buffered,
    )
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert "Errno" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topics", "delete", "t", "--dir"), "no answer on standard input: add --yes"),
        (("produce", "t", "--dir"), ""),
    ],
)
@pytest.mark.long
def test_a_closed_standard_input_is_an_empty_one(hostile: Path, arguments: tuple[str, ...], message: str) -> None:
    ended = subprocess.run(  # noqa: S603 - our own command
        ["/bin/sh", "-c", '"$@" <&-', "sh", *command(*arguments, hostile)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == (2 if message else 0)
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.long
def test_a_terminal_without_the_characters_gets_them_spelt_out(hostile: Path) -> None:
    ended = subprocess.run(  # noqa: S603 - our own command
        command("consume", "t", "--count", 1, "--dir", hostile),
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert ended.returncode == 0
    assert rb"\xe9" in ended.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_on(terminal_columns: int, columns: Sequence[str], *rows: Sequence[object]) -> list[str]:
    """Return the lines of a table on a terminal of this width, without styles and trailing spaces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal())
        patch.setenv("COLUMNS", str(terminal_columns))
        patch.setenv("TERM", "xterm")
        Output(as_json=False).table("logs", columns, rows)
        assert isinstance(sys.stdout, Terminal)
        text = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())
        return [line.rstrip() for line in text.splitlines()]


OFFSETS = ["partition", "local_log_start", "high_watermark", "error"]


def test_a_table_on_a_terminal_leaves_out_columns_without_values() -> None:
    lines = shown_on(80, OFFSETS, (0, 5, 9, ""), (1, 0, 2, None))
    assert lines[2].split("   ") == [" partition", "local log start", "high watermark"]


def test_headings_of_a_wide_table_are_wrapped_between_words() -> None:
    lines = shown_on(35, OFFSETS, (0, 5, 9, ""))
    assert max(map(len, lines)) <= 35
    assert [line.split() for line in lines[2:5]] == [["local"], ["log", "high"], ["partition", "start", "watermark"]]


def test_the_widest_column_of_a_wide_table_is_folded() -> None:
    lines = shown_on(60, ["partition", "error"], (0, "x" * 90))
    assert [line for line in lines if "x" in line] == ["         0   " + "x" * 46, " " * 13 + "x" * 44]


def test_rows_that_do_not_fit_become_blocks() -> None:
    lines = shown_on(20, OFFSETS, (0, 5, 9, ""), (1, 0, 2, "gone"))
    assert lines == [
        "logs",
        "",
        " partition        0",
        " local log start  5",
        " high watermark   9",
        "",
        " partition        1",
        " local log start  0",
        " high watermark   2",
        " error            gone",
        "",
    ]
