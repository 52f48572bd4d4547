"""``stratalog dump`` shows for each file the content that Kafka's dump tool shows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import golden_data
from dump_items import Item, agrees, dumped_file
from golden_data import Golden
from stratalog.cli.app import run

Unpacked = Callable[[str], Golden]

DUMPS = [pytest.param(*found, id="/".join(found)) for found in golden_data.dumps()]


def dumped(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[Path, list[Item]]:
    """Return the items that ``dump --json --values`` prints for each file. It must report no damage."""
    assert run(["dump", "--json", "--values", *map(str, paths)]) == 0
    items = defaultdict(list)
    captured = capsys.readouterr()
    assert not captured.err
    for line in captured.out.splitlines():
        item = json.loads(line)
        items[Path(item["file"])].append(item)
    return items


@pytest.mark.parametrize(("directory", "dump"), DUMPS)
@pytest.mark.long
def test_every_line_of_kafkas_dump(
    golden: Unpacked, capsys: pytest.CaptureFixture[str], directory: str, dump: str
) -> None:
    expected = dict(golden(directory).dumped_files(dump))
    items_by_path = dumped(capsys, *expected)
    assert items_by_path.keys() <= expected.keys()
    for path, expected_file in expected.items():
        actual_file = dumped_file(expected_file.name, items_by_path[path])
        actual_file.producers.sort()  # the order of producers has no meaning
        expected_file.producers.sort()
        assert actual_file == expected_file, path
        for item, batch in zip(
            (item for item in items_by_path[path] if item["kind"] == "batch"), expected_file.batches, strict=True
        ):
            for record, line in zip(item["records"], batch.records, strict=True):
                assert line.crc in {None, record.get("crc", item["crc"])}, (path, line)
                assert agrees(record, line.contents), (path, record, line.contents)


@pytest.mark.parametrize(
    "directory",
    [*golden_data.plain_directories(), *golden_data.crashed_directories(), *golden_data.tiered_directories()],
)
@pytest.mark.long
def test_every_folder_can_be_shown_to_people(
    golden: Unpacked, capsys: pytest.CaptureFixture[str], directory: str
) -> None:
    """Files of a crashed broker may end with damage or preallocated space; all other files are valid."""
    logs = golden(directory).logs
    for folder in (logs, *sorted(path for path in logs.iterdir() if path.is_dir())):
        exit_code = run(["dump", "--values", str(folder)])
        captured = capsys.readouterr()
        assert exit_code == 0 or (directory in golden_data.crashed_directories() and "corrupt: " in captured.err), (
            folder
        )
        assert "Traceback" not in captured.err
        log_files = [path for path in folder.iterdir() if path.suffix == ".log"]
        assert all(f"{path}: log, {path.stat().st_size} bytes" in captured.out for path in log_files)
