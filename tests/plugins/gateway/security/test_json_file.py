from __future__ import annotations

from pathlib import Path

import pytest

from small_disk import SmallDisk
from stratalog.spi import Env
from stratalog_gateway.security import json_file


@pytest.mark.parametrize("room_bytes", [0, 10])
def test_on_a_full_disk_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> None:
    path = tmp_path / "users.json"
    json_file.replace_json(path, {"version": 1})
    before = path.read_bytes()
    disk = SmallDisk(tmp_path, len(before) + room_bytes)
    monkeypatch.setattr(json_file, "Env", lambda: Env(files=disk))
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        json_file.replace_json(path, {"version": 2, "users": {}})
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
