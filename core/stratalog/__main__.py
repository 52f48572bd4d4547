"""``python -m stratalog``: the command line, for use when its script is not on the path."""

from __future__ import annotations

from stratalog.cli import main

if __name__ == "__main__":
    main()
