"""What the script ``stratalog`` calls. It stands beside the package, as loading that takes a moment, and Ctrl-C may come then."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Load the command line and run it; exit codes as its own, Ctrl-C while it is loaded included."""
    try:
        from stratalog.cli import main as run  # noqa: PLC0415 - see above

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
