"""Entry point of the script ``stratalog``. It is outside of the package, which takes time to import: Ctrl-C may arrive then."""

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
