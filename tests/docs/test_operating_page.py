"""All settings, metrics and commands on the page about operation exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from stratalog.cli.own_commands import OWN_COMMANDS
from stratalog.config.settings_sources import read_settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.duties.engine_metrics import METRICS
from stratalog.registry import Registry
from stratalog_s3.settings import S3Section

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text("utf-8")


def test_the_settings_are_right(text: str) -> None:
    engine_block, store_block = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    section = read_settings(tomllib.loads(store_block), {}).plugins["s3"]
    assert S3Section.from_mapping(section, "the page").allow_http
    settings = read_settings(tomllib.loads(engine_block), {})
    TopicConfig().replaced(settings.topic_defaults, "the page")
    service_names = {offer.provider.name for offer in Registry.of(settings, []).services()}
    assert set(settings.engine.services) <= service_names


def test_metrics_and_commands_are_there(text: str) -> None:
    metrics = set(re.findall(r"`(stratalog_\w+)`", text))
    assert metrics
    assert metrics <= {metric.name for metric in METRICS}
    commands = set(re.findall(r"`?stratalog ([a-z-]+)", text))
    assert {"run", "attach", "restore"} <= commands <= set(OWN_COMMANDS)


def test_settings_named_in_sentences_are_there(text: str) -> None:
    reference = (PAGE.parent / "reference" / "settings.md").read_text("utf-8")
    names = {
        name
        for name in re.findall(r"`([a-z]+(?:\.[a-z*]+)+)`", text)
        if name not in {"engine.start", "os.fork", "stratalog.toml"}
    }
    missing = [name for name in names if f"`{name.rstrip('*')}" not in reference]
    assert missing == []
