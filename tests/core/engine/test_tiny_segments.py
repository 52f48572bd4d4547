"""Warnings about a topic whose segments are too small for a tier: an event, and a line of the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from stratalog import Engine, open_engine
from stratalog.cli.app import run
from stratalog.spi import TinySegments, hookimpl
from stratalog.tier.upkeep.cost import upload_writes

MIB = 1 << 20


class Listener:
    def __init__(self) -> None:
        self.heard: list[TinySegments] = []

    @hookimpl
    def stratalog_on_tiny_segments(self, event: TinySegments) -> None:
        self.heard.append(event)


def opened(tmp_path: Path, listener: Listener, *, tier: bool = True) -> Engine:
    (tmp_path / "bucket").mkdir(exist_ok=True)
    uri = (tmp_path / "bucket").as_uri() if tier else None
    return open_engine(tmp_path / "data", tier=uri, plugins=[listener])


@pytest.mark.parametrize(
    ("config", "is_tiny"),
    [
        ({"segment.bytes": MIB}, True),
        ({"segment.bytes": 64 * MIB}, False),
        ({"segment.bytes": MIB, "remote.storage.enable": False}, False),
        ({"segment.bytes": 16 * MIB, "tier.layout": "plain"}, True),
        ({}, False),
    ],
)
def test_a_topic_of_tiny_segments_is_reported_once(
    tmp_path: Path, config: Mapping[str, object], *, is_tiny: bool
) -> None:
    listener = Listener()
    with opened(tmp_path, listener) as engine:
        engine.create_topic("t", partitions=3, config=config)
    reports = [(event.topic, event.segment_bytes) for event in listener.heard]
    assert reports == ([("t", config["segment.bytes"])] if is_tiny else [])


def test_the_reason_names_the_requests_for_each_gib(tmp_path: Path) -> None:
    listener = Listener()
    with opened(tmp_path, listener) as engine:
        engine.create_topic("t", config={"segment.bytes": MIB})
    assert f"{1024 * (upload_writes(MIB) + 2):,} writes a GiB" in listener.heard[0].reason
    assert "segment.bytes" in listener.heard[0].reason


def test_without_a_tier_no_event_is_sent(tmp_path: Path) -> None:
    listener = Listener()
    with opened(tmp_path, listener, tier=False) as engine:
        engine.create_topic("t", config={"segment.bytes": MIB})
    assert not listener.heard


def test_a_change_that_makes_them_tiny_is_reported_and_others_are_not(tmp_path: Path) -> None:
    listener = Listener()
    with opened(tmp_path, listener) as engine:
        engine.create_topic("t")
        engine.alter_topic("t", {"segment.bytes": MIB})
        engine.alter_topic("t", {"retention.ms": 1_000_000})
        engine.alter_topic("t", {"segment.bytes": None})
    assert [event.segment_bytes for event in listener.heard] == [MIB]


def test_the_command_line_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    place = ["--dir", str(tmp_path / "data"), "--tier", (tmp_path / "bucket").as_uri()]
    tiny = ["--set", f"segment.bytes={MIB}"]
    assert run(["topics", "create", "t", *tiny, *place]) == 0
    assert "warning: segments have 1048576 bytes" in capsys.readouterr().err
    assert run(["topics", "create", "u", *tiny, *place, "--json"]) == 0
    assert "writes a GiB" in json.loads(capsys.readouterr().out)["warning"]
    assert run(["topics", "create", "v", *place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warning"] == ""
    assert run(["topics", "alter", "v", *tiny, *place]) == 0
    assert "warning" in capsys.readouterr().err
