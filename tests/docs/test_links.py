"""The check of links reports each broken link, and no other link."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_links.py"


def run(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), str(root)], capture_output=True, text=True, check=False)  # noqa: S603 - our own script


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# A page\n\n## What `it` is, twice\n\n## What it is, twice\n")
    return tmp_path


@pytest.mark.parametrize(
    "link",
    [
        "docs/page.md",
        "docs/page.md#a-page",
        "docs/page.md#what-it-is-twice-1",
        "docs",
        "#here",
        "https://elsewhere.invalid/nothing",
        "mailto:nobody@elsewhere.invalid",
    ],
)
def test_valid_links_are_accepted(root: Path, link: str) -> None:
    (root / "README.md").write_text(f"# Here\n\n[text]({link})\n")
    result = run(root)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("link", ["docs/none.md", "docs/page.md#none", "#none", "../outside.md", "/etc"])
def test_broken_links_are_reported(root: Path, link: str) -> None:
    (root / "README.md").write_text(f"# Here\n\n[text]({link})\n")
    result = run(root)
    assert result.returncode == 1
    assert f"README.md: {link} " in result.stdout


def test_code_holds_no_links(root: Path) -> None:
    (root / "README.md").write_text("`[a](none.md)`\n\n```\n[b](none.md)\n```\n")
    assert run(root).returncode == 0


def test_documents_in_folders_are_checked(root: Path) -> None:
    (root / "docs" / "other.md").write_text("[back](../page.md)\n")
    assert "docs/other.md: ../page.md leads nowhere" in run(root).stdout
