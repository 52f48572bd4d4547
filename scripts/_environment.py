"""Makes .venv in the checkout and installs the project there, once. Run by the scripts beside it.

_environment.py NEED, with any Python >= 3.11 that has venv. NEED is ``demo`` (the project with every extra) or ``dev``
(also what tests and checks need). A stamp in .venv, the hash of what was asked for, says that an installation is
complete: an interrupted one is simply repeated, and what pip has downloaded by then comes from its cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
MADE_FOR: Final = VENV / "made-for"  # the folder of the checkout: commands in a .venv name it, and break when it moves
LOG: Final = VENV / "install.log"
NEEDS: Final = {"demo": ("-e", ".[all]"), "dev": ("-e", ".[all]", "--group", "dev")}
COVERED_BY: Final = {"demo": ("demo", "dev"), "dev": ("dev",)}
LOG_TAIL_LINES: Final = 25
KERNEL_KINDS: Final = ("*.pyx", "*.pxd", "*.h")
KERNEL_SWITCHES: Final = ("STRATALOG_NO_EXTENSIONS", "STRATALOG_KERNEL_FLAGS")


def main(need: str) -> int:
    """Prepare .venv for ``need``; 0 when it is ready, 1 with an explanation on stderr when it is not."""
    try:
        with locked():
            if not usable():
                make()
            if not any(stamp(name).is_file() and stamp(name).read_text() == wanted(name) for name in COVERED_BY[need]):
                install(need)
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 130
    except subprocess.CalledProcessError as error:
        say(f"{' '.join(error.cmd[1:5])} ... failed; the whole output is in {LOG}")
        return 1
    return 0


def say(text: str) -> None:
    """One line for the person who waits."""
    print(f"stratalog: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked() -> Iterator[None]:
    """Two scripts started at once do not install over each other; the lock needs no file of its own."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another script that prepares .venv")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stamp(need: str) -> Path:
    """The file that says that the installation for ``need`` is complete."""
    return VENV / f"stratalog-{need}.stamp"


def wanted(need: str) -> str:
    """The hash of everything that an installation depends on."""
    sources = sorted(
        path for folder in ("core", "plugins") for kind in KERNEL_KINDS for path in (ROOT / folder).rglob(kind)
    )
    files = [ROOT / "pyproject.toml", ROOT / "hatch_build.py", *sources]
    switches = [f"{name}={os.environ.get(name, '')}".encode() for name in KERNEL_SWITCHES]
    parts = [*(path.read_bytes() for path in files), *switches, *(argument.encode() for argument in NEEDS[need])]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def usable() -> bool:
    """Whether .venv has a working Python and pip, in the place it was made; with PYTHON set, whether it is that one."""
    if MADE_FOR.is_file() and MADE_FOR.read_text() != str(ROOT):
        return False
    python = VENV / "bin" / "python"
    script = "import sys, pip; print(sys.base_prefix if sys.version_info >= (3, 11) else '')"
    try:
        result = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    except OSError:
        return False
    base = result.stdout.strip()
    return bool(base) and (not os.environ.get("PYTHON") or base == sys.base_prefix)


def make() -> None:
    """Make .venv anew."""
    say(f"making {VENV} with Python {sys.version.split()[0]} ({sys.base_prefix})")
    venv.create(VENV, clear=True, symlinks=True, with_pip=True)
    MADE_FOR.write_text(str(ROOT))


def install(need: str) -> None:
    """Install the project, editable, with what ``need`` asks for."""
    for old in NEEDS:
        stamp(old).unlink(missing_ok=True)
    say("installing the project and what it stands on; this happens once and may take some minutes")
    LOG.unlink(missing_ok=True)
    pip("pip>=25.1")  # the first with dependency groups
    pip(*NEEDS[need])
    partial = stamp(need).with_suffix(".partial")
    partial.write_text(wanted(need))
    partial.replace(stamp(need))


def pip(*arguments: str) -> None:
    """Run ``pip install``: its output goes to the log, the progress to stderr."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--prefer-binary", "--progress-bar", "off"]
    # A global "pip install --user" default would be refused inside a virtual environment.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            show(line.strip())
    if process.returncode:
        print("".join(LOG.read_text().splitlines(keepends=True)[-LOG_TAIL_LINES:]), file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, [*command, *arguments])


def show(line: str) -> None:
    """Tell of the lines of pip's output that mean progress."""
    match line.split():
        case ["Downloading", file, *size]:
            name_and_version = file.rsplit("/", 1)[-1].split("-")[:2]
            say(" ".join(["downloading", *name_and_version, *size]))
        case ["Installing", "collected", "packages:", *names]:
            say(f"installing {len(names)} packages")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
