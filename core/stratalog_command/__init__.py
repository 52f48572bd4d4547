"""Entry point of the script ``stratalog``.

It is outside of the package ``stratalog``, because it handles Ctrl-C while that package is being imported.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line, and exit with its code. After Ctrl-C during its import, the code is 130."""
    try:
        from stratalog.cli import main as run  # noqa: PLC0415 - see above

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
