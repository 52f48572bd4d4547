"""Real processes are killed while they offload, evict, expire, compact and collect.

No data is lost, and manifests refer to no missing object. After one more pass, there are no unreferenced objects.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stratalog.testing.s3 import LocalS3
from versitygw import Gateway

KILL_LOOP = Path(__file__).parents[2] / "support" / "tier_kill_loop.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def killed(folder: Path, uri: str, options: Mapping[str, object], cycles: int, seed: int) -> str:
    command = [sys.executable, str(KILL_LOOP), str(folder), uri, json.dumps(options), str(cycles), str(seed)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    return process.stderr


@pytest.mark.long
def test_a_tier_in_a_folder_survives_every_kill(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    assert killed(tmp_path / "data", bucket.as_uri(), {}, 25, 1) == ""


@pytest.mark.long
def test_a_tier_on_s3_survives_every_kill(tmp_path: Path, local_s3: LocalS3, s3_tier: str) -> None:
    assert killed(tmp_path / "data", s3_tier, local_s3.options, 10, 3) == ""


@pytest.mark.long
def test_a_tier_on_a_second_server_survives_every_kill(tmp_path: Path, server: Gateway) -> None:
    assert killed(tmp_path / "data", server.uri("killed"), server.options, 10, 4) == ""


@pytest.mark.long
def test_a_kill_after_each_write_to_a_second_server(tmp_path: Path, server: Gateway) -> None:
    """The process is killed after each upload, root and deletion of its work.

    The work consists of offload, eviction, expiry, compaction and collection.
    """
    assert killed(tmp_path / "data", server.uri("each"), server.options, 0, 0) == ""


@pytest.mark.long
def test_a_kill_after_each_write_to_a_folder(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    assert killed(tmp_path / "data", bucket.as_uri(), {}, 0, 0) == ""
