from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_runs import printed_items
from stratalog import Record, open_engine
from stratalog.cli.app import run


@pytest.fixture
def uri(tmp_path: Path, bucket: Path) -> str:
    with open_engine(tmp_path / "lost", tier=bucket.as_uri()) as engine:
        for topic in ("t", "u"):
            engine.create_topic(topic)
            engine.log(topic, 0).append([Record(value=b"x")])
            engine.log(topic, 0).roll()
            engine.log(topic, 0).append([Record(value=b"on disk alone")])
        engine.offload()
    return bucket.as_uri()


def test_a_tier_is_taken_over(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attach", uri, "--dir", str(tmp_path / "new"), "--json"]) == 0
    rows = printed_items(capsys)
    assert [(row["topic"], row["leader_epoch"], row["next_offset"], row["lost_offsets"]) for row in rows] == [
        ("t", 1, 1, 1),
        ("u", 1, 1, 1),
    ]
    with open_engine(tmp_path / "new", tier=uri) as engine:
        assert engine.log("u", 0).append([Record(value=b"y")]).base_offset == 1


def test_one_topic_is_taken_over(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attach", uri, "--dir", str(tmp_path / "new"), "--topic", "u"]) == 0
    assert capsys.readouterr().out.startswith("taken over")
    assert [path.name for path in (tmp_path / "new").iterdir() if path.is_dir()] == ["u-0"]


def test_a_directory_with_logs_is_refused(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attach", uri, "--dir", str(tmp_path / "lost"), "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"] == "AttachError"
