"""``stratalog dump`` of objects of each layout, without keys and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.cli.app import run
from stratalog.spi import TierLayout
from stratalog.testing.contracts.made_segments import MemoryObjects
from stratalog.testing.contracts.tier_layout import a_segment
from stratalog_formats.layouts.chunked import ChunkedLayout
from stratalog_formats.layouts.plain import PlainLayout
from stratalog_formats.layouts.single import SingleLayout


@pytest.mark.parametrize(
    ("layout", "suffix"),
    [(SingleLayout(5_000), "seg"), (ChunkedLayout(5_000), "seg"), (PlainLayout(5_000), "entry")],
    ids=["single", "chunked", "plain"],
)
def test_an_object_is_recognised_by_its_footer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: TierLayout, suffix: str
) -> None:
    objects = MemoryObjects()
    layout.write(a_segment(), objects, None)
    (key,) = [key for key in objects.objects if key.endswith(f".{suffix}")]
    file = tmp_path / key
    file.parent.mkdir(parents=True)
    file.write_bytes(objects.objects[key])
    assert run(["dump", str(file)]) == 0
    text = capsys.readouterr().out
    assert "base_offset" in text
    assert "leader-epochs" in text
