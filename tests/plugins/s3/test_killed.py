"""Real processes, killed while they offload, evict, expire and collect: nothing is lost, and nothing is named that is not there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stratalog.testing.s3 import LocalS3

KILL_LOOP = Path(__file__).parents[2] / "support" / "tier_kill_loop.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def killed(folder: Path, uri: str, options: Mapping[str, object], cycles: int, seed: int) -> str:
    command = [sys.executable, str(KILL_LOOP), str(folder), uri, json.dumps(options), str(cycles), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    return done.stderr


@pytest.mark.parametrize("seed", [1, 2])
def test_a_tier_in_a_folder_survives_every_kill(tmp_path: Path, seed: int) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    assert killed(tmp_path / "data", bucket.as_uri(), {}, 30, seed) == ""


def test_a_tier_on_s3_survives_every_kill(tmp_path: Path, local_s3: LocalS3, s3_tier: str) -> None:
    assert killed(tmp_path / "data", s3_tier, local_s3.options, 15, 3) == ""
