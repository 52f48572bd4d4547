"""Entry point of the script ``stratalog``.

It is outside of the package ``stratalog``, so that it can handle Ctrl-C while that package is being imported.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it, with its exit codes. After Ctrl-C during the import, exit with code 130."""
    try:
        from stratalog.cli import main as run  # noqa: PLC0415 - see above

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
