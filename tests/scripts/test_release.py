"""A release needs a checkout that is ready for it, and the option --really."""

from __future__ import annotations

import subprocess
import tarfile
import tomllib
from pathlib import Path

import _release
import pytest

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout that is ready for the release of 1.2.3."""
    for variable in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{variable}_NAME", "a")
        monkeypatch.setenv(f"GIT_{variable}_EMAIL", "a@example.org")
    (tmp_path / "core" / "stratalog").mkdir(parents=True)
    (tmp_path / "core" / "stratalog" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    monkeypatch.setattr(_release, "build", lambda folder: folder.mkdir(exist_ok=True))
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout  # noqa: S603, S607 - git


def test_a_dry_run_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _release.release(root, really=False)
    assert "dry run: with --really, tag v1.2.3 is made" in capsys.readouterr().out
    assert git(root, "tag", "--list") == ""
    assert git(root, "status", "--porcelain") == ""


def test_the_tag_is_made_once(root: Path) -> None:
    _release.release(root, really=True)
    assert git(root, "tag", "--list") == "v1.2.3\n"
    assert _release.problems_of(root, "1.2.3") == ["tag v1.2.3 is there already: raise the version"]


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n", "CHANGELOG.md has no heading for 1.2.3"),
        ("CHANGELOG.md", "## [1x2.3] - 2026-01-31\n", "CHANGELOG.md has no heading for 1.2.3"),
        ("core/stratalog/__init__.py", '__version__ = "1.2.3.dev0"\n', "version 1.2.3.dev0 is not MAJOR.MINOR.PATCH"),
    ],
)
def test_what_is_not_ready_is_named_and_not_tagged(
    root: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, problem: str
) -> None:
    (root / file).write_text(text)
    with pytest.raises(_release.ReleaseError, match="nothing was done"):
        _release.release(root, really=True)
    message = capsys.readouterr().err
    assert problem in message
    assert "the checkout has changes" in message
    assert git(root, "tag", "--list") == ""
    with pytest.raises(_release.ReleaseError, match="not ready"):
        _release.release(root, really=False)


def test_the_version_of_the_checkout_is_found() -> None:
    assert _release.RELEASED.match(_release.version_of(ROOT))


def test_an_sdist_with_a_stray_file_is_refused(tmp_path: Path) -> None:
    stray = tmp_path / "stray.so"
    stray.write_bytes(b"")
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as archive:
        archive.add(stray, "stratalog-1.2.3/core/stray.so")
    with pytest.raises(_release.ReleaseError, match=r"not in git: core/stray\.so"):
        _release.check_sdist(tmp_path / "s.tar.gz")


def test_an_sdist_without_sources_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz"):
        pass
    with pytest.raises(_release.ReleaseError, match="the sdist lacks core/stratalog/"):
        _release.check_sdist(tmp_path / "s.tar.gz")


def test_wheels_are_built_for_every_python_of_the_classifiers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    versions = [line.rpartition(" ")[2] for line in project["project"]["classifiers"] if "Python :: 3." in line]
    wheel_tags = project["tool"]["cibuildwheel"]["build"].split()
    assert [f"cp{version.replace('.', '')}-*" for version in versions] == wheel_tags
    assert project["project"]["requires-python"] == f">={versions[0]}"
