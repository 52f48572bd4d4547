"""Each setting has an effect, or its documentation says that it has none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import stratalog
from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.config.keys import Key, Section
from stratalog.config.topic import NO_EFFECT, TopicConfig

NOTHING_YET = "has no effect yet"
CORE = Path(stratalog.__file__).parent
PLUGINS = CORE.parents[1] / "plugins"


def sources(*left_out: str) -> str:
    files = [*CORE.rglob("*.py"), *PLUGINS.rglob("*.py")]
    folders = [CORE / name for name in ("testing", *left_out)]
    return "\n".join(path.read_text() for path in files if not any(map(path.is_relative_to, folders)))


@pytest.mark.parametrize("section", [EngineConfig, Limits, TopicConfig])
@pytest.mark.long
def test_a_setting_is_used_or_reported_as_unused(section: type[Section]) -> None:
    # the folder config also reads the settings, to parse and compare them
    everywhere, elsewhere = sources(), sources("config")
    for field in dataclasses.fields(section):
        if not field.metadata:
            continue  # a field for the settings of plugins
        (setting,) = (value for value in field.metadata.values() if isinstance(value, Key))
        if NOTHING_YET in setting.doc or NO_EFFECT in setting.doc:
            assert f".{field.name}" not in elsewhere, f"{setting.name} has an effect now"
        else:
            assert f".{field.name}" in everywhere, f"{setting.name} has no effect"
