"""The command ``stratalog`` in its own process, as a shell would start it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

# If a shell runs the tests in the background, SIGINT is ignored in them and in all processes that they start.
_BEGIN = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from stratalog_command import main; main()"


def own_command(*arguments: str) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-c", _BEGIN, *arguments]


@contextlib.contextmanager
def running_command(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start the command with pipes for its output, and kill it after the block if it has not ended.

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
