"""The page about metrics, spans and deployment: its examples run, and its names exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import prometheus_client
import pytest

from stratalog import Record, open_engine
from stratalog.config.settings_sources import read_settings
from stratalog_telemetry.settings import MetricsSection

PAGE = Path(__file__).parents[2] / "docs" / "running.md"


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
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with open_engine(tmp_path / "logs") as engine:
        engine.create_topic("orders")
        exec(block, {"engine": engine})  # noqa: S102 - the page's own text
        engine.log("orders").append([Record(value=b"v")])
        assert registry.get_sample_value("stratalog_append_seconds_count") == 1
