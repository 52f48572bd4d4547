"""``stratalog demo`` on the first releases of Python 3.11 (in Debian 12), whose ``tarfile`` has no filters."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from stratalog.cli.app import run


def test_the_demo_asks_for_no_filter_that_python_does_not_have(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = tarfile.TarFile.extractall

    def then(
        tar: tarfile.TarFile, path: str | Path = ".", members: None = None, *, numeric_owner: bool = False
    ) -> None:
        now(tar, path, members, numeric_owner=numeric_owner)

    monkeypatch.setattr(tarfile.TarFile, "extractall", then)
    assert run(["demo", "--records", "1", "--tier", bucket.as_uri(), "--json"]) == 0
