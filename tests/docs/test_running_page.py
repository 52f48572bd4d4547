"""The page about metrics, spans and deployment: its examples run, and its settings, loggers and commands exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import prometheus_client
import pytest

from stratalog import Record, open_engine
from stratalog.cli.maintenance.run_command import run_engine
from stratalog.config.settings_sources import read_settings
from stratalog_telemetry.settings import MetricsSection

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "running.md"
LOGGER = re.compile(r'logging\.getLogger\((__name__|"[\w.]+")\)')


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text("utf-8")


def test_the_settings_are_the_defaults(text: str) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    section = read_settings(tomllib.loads(block), {}).plugins["metrics"]
    assert MetricsSection.from_mapping(section, "the page") == MetricsSection()


def test_an_engine_is_added_to_a_registry(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    block, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with open_engine(tmp_path / "logs") as engine:
        engine.create_topic("orders")
        exec(block, {"engine": engine})  # noqa: S102 - the page's own text
        engine.log("orders").append([Record(value=b"v")])
        assert registry.get_sample_value("stratalog_append_seconds_count") == 1


def loggers() -> set[str]:
    """Return the names of all loggers in the source files."""
    names = set[str]()
    for source in (ROOT / "core", *(ROOT / "plugins").iterdir()):
        for path in source.rglob("*.py"):
            module = ".".join(path.relative_to(source).with_suffix("").parts)
            names |= {name.strip('"').replace("__name__", module) for name in LOGGER.findall(path.read_text("utf-8"))}
    return names


def test_the_table_has_all_loggers_and_no_other(text: str) -> None:
    rows = set(re.findall(r"^\| `(stratalog[\w.]*)` \|", text, re.MULTILINE))
    logger_rows = {name: [row for row in rows if name == row or name.startswith(f"{row}.")] for name in loggers()}
    assert [name for name, matching_rows in logger_rows.items() if not matching_rows] == []
    assert rows == {max(matching_rows, key=len) for matching_rows in logger_rows.values()}


def test_the_levels_are_set_on_loggers_that_exist(text: str) -> None:
    _, block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(block, "the page", "exec")
    (logger,) = re.findall(r'getLogger\("([\w.]+)"\)', block)
    assert any(name.startswith(f"{logger}.") for name in loggers())


def test_the_files_and_options_of_commands_are_there(text: str) -> None:
    files = set(re.findall(r"deploy/[\w./-]+", text))
    assert len(files) == 5
    assert [name for name in files if not (ROOT / name).is_file()] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for group in re.findall(r'"stratalog\[([\w,-]+)\]"', text):
        assert set(group.split(",")) <= set(extras)
    assert set(re.findall(r"--(?:no-)?metrics", text)) <= {
        option for parameter in run_engine.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
