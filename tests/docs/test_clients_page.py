"""The page about producers and consumers names every option with its default."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from stratalog import Engine
from stratalog.client.producer import ProducerOptions

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def rows(title: str) -> dict[str, str]:
    section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", section, re.MULTILINE))


def test_producer_options() -> None:
    options = {field.name: str(field.default) for field in dataclasses.fields(ProducerOptions)}
    assert rows("Producer options") == {"transactional_id": "none", **options}


def test_consumer_options() -> None:
    parameters = inspect.signature(Engine.consumer).parameters.values()
    options = {
        parameter.name: "required"
        if parameter.default is parameter.empty
        else "none"
        if parameter.default is None
        else str(parameter.default)
        for parameter in parameters
        if parameter.name != "self"
    }
    assert rows("Consumer options") == options
