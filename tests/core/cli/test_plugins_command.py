from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_runs import printed_items
from stratalog.cli.app import run
from stratalog.extensions import SWITCH, absence
from stratalog.model import records
from stratalog.tier.manifest import page_codec

EXTENSIONS = (*records.EXTENSIONS, *page_codec.EXTENSIONS)  # compiled modules of stratalog that `plugins` lists
Rows = dict[tuple[str, str], dict[str, Any]]  # Any: JSON


@pytest.fixture
def listed(capsys: pytest.CaptureFixture[str]) -> Callable[[], Rows]:
    """Return a function that returns the items of ``stratalog plugins --json``, by kind and name."""

    def call() -> Rows:
        assert run(["plugins", "--json"]) == 0
        items = printed_items(capsys)
        return {(item["kind"], item["name"]): item for item in items}

    return call


def test_the_core_and_the_formats_report_if_compiled_code_is_used(listed: Callable[[], Rows]) -> None:
    rows = listed()
    for kind, name in (("core", "records"), ("record_formats", "v0"), ("record_formats", "v2")):
        row = rows[kind, name]
        assert row["compiled"] is (row["not_compiled"] == "")
    assert rows["core", "records"]["compiled"] is not any(map(absence, EXTENSIONS))
    assert rows["codecs", "zstd"]["compiled"] is None


def test_a_twin_that_is_switched_off_is_reported(listed: Callable[[], Rows], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    rows = listed()
    kernels = ", ".join(name.rpartition(".")[2] for name in EXTENSIONS)
    assert rows["core", "records"]["not_compiled"] == f"{kernels}: switched off by {SWITCH}"
    assert rows["record_formats", "v2"]["compiled"] is False
    assert SWITCH in rows["record_formats", "v2"]["not_compiled"]
    assert rows["index_formats", "transaction"]["not_compiled"] == ""


def test_a_twin_that_was_not_built_is_named_and_only_that(
    listed: Callable[[], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    pytest.importorskip(EXTENSIONS[0])
    monkeypatch.setitem(sys.modules, EXTENSIONS[1], None)
    row = listed()["core", "records"]
    assert row["compiled"] is False
    assert row["not_compiled"].startswith("arrow_c: not built")


def test_text_output_shows_that_the_compiled_module_is_switched_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    assert run(["plugins"]) == 0
    output = capsys.readouterr().out
    assert "not compiled" in output
    assert f"switched off by {SWITCH}" in output


FAILING = """
from stratalog.spi import Provider, hookimpl

@hookimpl
def stratalog_codecs():
    return (Provider(name="brotli", open=open_brotli),)

def open_brotli(context):
    raise ValueError("no dictionary")
"""


def test_a_codec_that_cannot_be_opened_is_shown_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_brotli.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "settings.toml").write_text('"plugins.modules" = ["acme_brotli"]\n')
    assert run(["plugins", "--json", "--config", str(tmp_path / "settings.toml")]) == 1
    rows = printed_items(capsys)
    (row,) = [row for row in rows if row["status"] == "quarantined"]
    assert (row["plugin"], row["kind"], row["name"]) == ("acme_brotli", "codecs", "brotli")
    assert "(plugin acme_brotli): open raised ValueError: no dictionary" in row["error"]
