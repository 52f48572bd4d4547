"""The command ``stratalog`` in a process of its own, as a shell would start it."""

from __future__ import annotations

import sys

# A shell that runs us in the background has Ctrl-C ignored, and so would all that we start.
_BEGIN = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from stratalog_command import main; main()"


def own_command(*arguments: str) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-c", _BEGIN, *arguments]
