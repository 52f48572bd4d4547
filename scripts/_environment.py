"""Make .venv in the checkout and install the project there, once. The other scripts of this folder run this module.

_environment.py NEED, with any Python >= 3.11 that has venv. NEED is ``demo`` (the project, and the extras that
``stratalog demo`` needs) or ``dev`` (every extra, and the packages that tests and checks need). After a complete
installation, a stamp file in .venv contains the hash of all inputs of the installation. Without a valid stamp, the next
run installs again.
"""

from __future__ import annotations

import ensurepip
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import tomllib
import venv
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
# contains the folder of the checkout: commands in a .venv contain its path, and break when it moves
MADE_FOR: Final = VENV / "made-for"
LOG: Final = VENV / "install.log"
DEMO_EXTRAS: Final = ("cli", "local-s3")
OWN_EXTRAS: Final = "stratalog["  # begins a requirement of an extra that includes other extras
DEMO_PINS: Final = (
    "scripts/demo-pins.txt"  # without pins, pip searches for a version of boto3 that fits aiobotocore, which takes long
)
NEEDS: Final = {"demo": DEMO_EXTRAS, "dev": ("-e", ".[all]", "--group", "dev")}
NEWER_PIP: Final = {"demo": (), "dev": ("pip>=25.1",)}  # the first version that supports dependency groups
COVERED_BY: Final = {"demo": ("demo", "dev"), "dev": ("dev",)}
LOG_TAIL_LINES: Final = 25
KERNEL_KINDS: Final = ("*.pyx", "*.pxd", "*.h")
KERNEL_SWITCHES: Final = ("STRATALOG_NO_EXTENSIONS", "STRATALOG_KERNEL_FLAGS")


def main(need: str) -> int:
    """Prepare .venv for ``need``. Return 0 if it is ready, 130 after Ctrl-C, or 1 with an explanation on stderr."""
    try:
        with lock_checkout():
            if not is_usable():
                make()
            if not any(
                stamp(name).is_file() and stamp(name).read_text() == input_hash(name) for name in COVERED_BY[need]
            ):
                install(need)
    except KeyboardInterrupt:
        say("interrupted; run the command again to continue")
        return 130
    except subprocess.CalledProcessError as error:
        print(error.output or "", end="", file=sys.stderr)
        say(f"{' '.join(error.cmd[1:4])} failed; the whole output is in {LOG}")
        return 1
    return 0


def say(text: str) -> None:
    """Print one line on stderr for the waiting user."""
    print(f"stratalog: {text}", file=sys.stderr, flush=True)


@contextmanager
def lock_checkout() -> Iterator[None]:
    """Run the block under a lock on pyproject.toml, so that two scripts do not install at the same time."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another script that prepares .venv")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stamp(need: str) -> Path:
    """Return the path of the stamp file, which exists only after a complete installation for ``need``."""
    return VENV / f"stratalog-{need}.stamp"


def input_hash(need: str) -> str:
    """Return the hash of all inputs of an installation for ``need``, which its stamp file contains."""
    sources = sorted(
        path for folder in ("core", "plugins") for kind in KERNEL_KINDS for path in (ROOT / folder).rglob(kind)
    )
    pins = [ROOT / DEMO_PINS] if need == "demo" else []
    files = [ROOT / "pyproject.toml", ROOT / "hatch_build.py", *pins, *sources]
    switches = [f"{name}={os.environ.get(name, '')}".encode() for name in KERNEL_SWITCHES]
    parts = [*(path.read_bytes() for path in files), *switches, *(argument.encode() for argument in NEEDS[need])]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_usable() -> bool:
    """Return True if .venv was created in this folder, and its Python and pip work.

    If the variable PYTHON is set, .venv must also have been created by this Python.
    """
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
    """Make a new .venv with pip, in place of an existing one; raise CalledProcessError if pip cannot be installed."""
    say(f"making {VENV} with Python {sys.version.split()[0]} ({sys.base_prefix})")
    wheel = bundled_pip()
    venv.create(VENV, clear=True, symlinks=True, with_pip=wheel is None)
    if wheel is not None:  # ensurepip would also compile every module of pip, which takes seconds
        command = [
            str(VENV / "bin" / "python"),
            str(wheel / "pip"),
            "install",
            "--no-index",
            "--no-compile",
            str(wheel),
        ]
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    MADE_FOR.write_text(str(ROOT))


def bundled_pip() -> Path | None:
    """Return the wheel of pip that is bundled with this Python; None if it is not found."""
    folders = (Path(ensurepip.__file__).parent / "_bundled", Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or "."))
    return next((wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))), None)


def install(need: str) -> None:
    """Install the project, editable, with the packages for ``need``; then write the stamp file."""
    for old in NEEDS:
        stamp(old).unlink(missing_ok=True)
    LOG.unlink(missing_ok=True)
    with Progress("installing; this happens once") as progress:
        if NEWER_PIP[need]:
            pip(progress, *NEWER_PIP[need])
        if need == "demo":
            with ThreadPoolExecutor() as threads:  # the compiler and the downloads do not wait for each other
                project = threads.submit(pip, progress, "--no-deps", "-e", ".")
                pip(progress, *demo_packages(), "-c", DEMO_PINS)
                progress.begin("compiling the kernels")
                project.result()
        else:
            pip(progress, *NEEDS[need])
    partial = stamp(need).with_suffix(".partial")
    partial.write_text(input_hash(need))
    partial.replace(stamp(need))


def demo_packages() -> list[str]:
    """Return the requirements of the project with the extras of the demo, without the project itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages, extras = [*project["dependencies"]], [*DEMO_EXTRAS]
    while extras:
        for requirement in project["optional-dependencies"][extras.pop(0)]:
            if requirement.startswith(OWN_EXTRAS):  # an extra that includes others
                extras += requirement.removeprefix(OWN_EXTRAS).removesuffix("]").split(",")
            else:
                packages.append(requirement)
    return packages


class Progress:
    """Progress of an installation on stderr: on a terminal one line that is rewritten, otherwise a line for each step.

    On a terminal, a thread updates the elapsed seconds, because the longest step, the compiler, prints nothing.
    """

    def __init__(self, step: str) -> None:
        self._step, self._detail, self._seconds = step, "", 0
        self._shown_steps = {step}
        self._is_terminal = sys.stderr.isatty()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        """Show the first step."""
        if self._is_terminal:
            self._ticker.start()
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        """Erase the line on a terminal."""
        self._ended.set()
        if self._is_terminal:
            self._ticker.join()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def read(self, line: str) -> None:
        """Show a step if this line of pip's output announces it; ignore other lines."""
        match line.split():
            case ["Preparing", "editable", "metadata", *_, "started"]:
                self.begin("compiling the kernels")
            case ["Downloading", file, *size]:
                self.begin("downloading packages", " ".join([*file.rsplit("/", 1)[-1].split("-")[:2], *size]))
            case ["Installing", "collected", "packages:", *names]:
                self.begin("installing " + ("1 package" if len(names) == 1 else f"{len(names)} packages"))

    def begin(self, step: str, detail: str = "") -> None:
        """Show a step. If stderr is no terminal, show each step once: two installations may run at the same time."""
        is_new = step not in self._shown_steps
        self._shown_steps.add(step)
        self._step, self._detail = step, detail
        if is_new or self._is_terminal:
            self._show()

    def _show(self) -> None:
        if not self._is_terminal:
            say(self._step)
            return
        line = f"stratalog: {self._step} ({self._seconds} s) {self._detail}"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)

    def _tick(self) -> None:
        while not self._ended.wait(1):
            self._seconds += 1
            self._show()


def pip(progress: Progress, *arguments: str) -> None:
    """Run ``pip install``; write its output to the log file, and show its steps in ``progress``.

    Raises:
        CalledProcessError: pip failed; the error has the last lines of its output.
    """
    # pip would compile all modules; Python compiles only those that it imports.
    options = ["--prefer-binary", "--no-compile", "--progress-bar", "off"]
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", *options]
    # A global "pip install --user" default would be refused inside a virtual environment.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    with (
        LOG.open("a", buffering=1) as log,
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
        tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        for line in process.stdout:
            tail.append(line)
            log.write(line)
            progress.read(line.strip())
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, [*command, *arguments], "".join(tail))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
