"""The command line: one file a command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``stratalog``; exit code 0, 1 (it found something wrong) or 2 (it could not run)."""
    try:
        from stratalog.cli.app import run  # noqa: PLC0415 - click and rich are an extra
    except ImportError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.stderr.write(f"error: {error.name} is not installed: install it with: pip install 'stratalog[cli]'\n")
        sys.exit(2)
    sys.exit(run())
