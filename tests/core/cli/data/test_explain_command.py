"""``stratalog explain``: the steps of the search for a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_runs import RunCommand
from stratalog import Record, open_engine


@pytest.mark.parametrize(("compression", "codec"), [("uncompressed", "none"), ("gzip", "gzip")])
def test_explain_and_dump_name_the_codec_of_a_batch(
    tmp_path: Path, stratalog: RunCommand, compression: str, codec: str
) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", config={"compression.type": compression})
        engine.log("t", 0).append([Record(value=b"v" * 100)])
    explained = stratalog("explain", "t", 0, 0, "--dir", tmp_path, "--json").items
    dumped = stratalog("dump", tmp_path / "t-0" / f"{0:020}.log", "--json").items[0]
    assert [step["codec"] for step in explained if step["step"] == "batch"] == [dumped["codec"]] == [codec]
    assert f"CRC good, codec {codec}\n" in stratalog("explain", "t", 0, 0, "--dir", tmp_path).out
