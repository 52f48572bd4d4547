"""Directories of all versions of Kafka are valid. After a crash, only indexes with reserved space are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import golden_data
from command_runs import printed_items
from golden_data import Golden
from golden_reading import hashes
from stratalog.cli.app import run

Unpacked = Callable[[str], Golden]


def verified(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, object]]]:
    code = run(["verify", str(folder), "--json", *options])
    return code, printed_items(capsys)


@pytest.mark.parametrize("directory", golden_data.plain_directories())
def test_a_directory_that_was_stopped_in_order_is_sound(
    golden: Unpacked, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = golden(directory).logs
    before = hashes(logs)
    code, items = verified(logs, capsys, "--deep")
    assert (code, [item for item in items if "problem" in item]) == (0, [])
    assert sum(int(str(item["batches"])) for item in items) > 0
    assert sum(int(str(item["records"])) for item in items) > 0
    assert hashes(logs) == before


@pytest.mark.parametrize("directory", golden_data.crashed_directories())
@pytest.mark.long
def test_a_crashed_directory_has_indexes_with_reserved_space_and_is_repaired(
    golden: Unpacked, directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = golden(directory).copy_logs(tmp_path / "logs")
    code, items = verified(logs, capsys)
    assert (code, {item["problem"] for item in items if "problem" in item}) == (1, {"index"})
    assert verified(logs, capsys, "--repair")[0] == 0
    assert verified(logs, capsys)[0] == 0
    recovered = golden(directory).path / "recovered"
    for path in [*logs.glob("*/*.log"), *logs.glob("*/*index")]:
        assert path.read_bytes() == (recovered / path.parent.name / path.name).read_bytes()
