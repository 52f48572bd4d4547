"""Command line of stratalog; each command has a module of its own."""

from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path
from typing import Final, TextIO

_GC_THRESHOLD: Final = 50_000  # with Python's default of 700, garbage collection takes a sixth of the import time


def main() -> None:
    """Run ``stratalog`` and exit the process.

    The exit code is 0 (no problem), 1 (the command found a problem), 2 (the command could not run), 130 (Ctrl-C
    interrupted it) or 143 (SIGTERM interrupted it).
    """
    gc.set_threshold(_GC_THRESHOLD)
    sys.stdin = _ensure_readable(sys.stdin)
    sys.stdout, sys.stderr = _ensure_writable(sys.stdout), _ensure_writable(sys.stderr)
    try:
        from stratalog.cli.app import run  # noqa: PLC0415 - click and rich are an extra

        code = run()
    except ImportError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.stderr.write(f"error: {error.name} is not installed: install it with: pip install 'stratalog[cli]'\n")
        sys.exit(2)
    sys.exit(code)


def _ensure_readable(stream: TextIO | None) -> TextIO:
    """Return ``stream``, or an empty stream if it is None. It is None if a shell closed it with ``<&-``."""
    return Path(os.devnull).open(encoding="utf-8") if stream is None else stream


def _ensure_writable(stream: TextIO | None) -> TextIO:
    """Return ``stream``, changed to accept any text; if it is None, return a stream that discards all text."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream
