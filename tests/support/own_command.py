"""The command ``stratalog`` in a process of its own, as a shell would start it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

# A shell that runs us in the background has Ctrl-C ignored, and so would all that we start.
_BEGIN = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from stratalog_command import main; main()"


def own_command(*arguments: str) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-c", _BEGIN, *arguments]


@contextlib.contextmanager
def running_command(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start the command with pipes for its output; a test that fails kills it, instead of waiting for its end.

    Args:
        arguments: arguments of the command.
        options: more arguments of ``Popen``.
    """
    command = own_command(*arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as running:
        try:
            yield running
        except BaseException:
            running.kill()
            raise
