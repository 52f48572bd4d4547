"""Check that every relative link in the project's Markdown leads to an existing file, and to an existing heading.

Usage: check_links.py [ROOT]. The exit code is 1 if a link is broken; each broken link is printed. Links to other sites
are not checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

FENCE: Final = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE: Final = re.compile(r"`[^`\n]*`")
LINK: Final = re.compile(r"!?\[(?P<label>[^\]]*)\]\(\s*<?(?P<link>[^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING: Final = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_FOLDERS: Final = ("docs", "examples", "benchmarks", "tests")


def documents(root: Path) -> list[Path]:
    """Return the Markdown files in ``root``, and in its folders docs, examples, benchmarks and tests."""
    return sorted(root.glob("*.md")) + sorted(file for name in _FOLDERS for file in (root / name).rglob("*.md"))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of ``text``, in the form that GitHub and GitLab use."""
    slug_counts: dict[str, int] = {}
    result = set()
    for title in _HEADING.findall(FENCE.sub("", text)):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        count = slug_counts.get(slug, 0)
        slug_counts[slug] = count + 1
        result.add(f"{slug}-{count}" if count else slug)
    return result


def broken_links(document: Path, root: Path) -> Iterator[str]:
    """Yield a text for each relative link of ``document`` to a missing file or heading, or out of ``root``."""
    text = CODE.sub("", FENCE.sub("", document.read_text(encoding="utf-8")))
    for link in (match["link"] for match in LINK.finditer(text)):
        if ELSEWHERE.match(link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (document.parent / path).resolve() if path else document.resolve()
        where = f"{document.relative_to(root)}: {link}"
        if not target.is_relative_to(root.resolve()):
            yield f"{where} leads out of the project"
        elif not target.exists():
            yield f"{where} leads nowhere"
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield f"{where} names a heading that is not there"


def main(root: Path) -> int:
    """Check all documents under ``root``, print the broken links, and return the exit code."""
    failures = [line for document in documents(root) for line in broken_links(document, root)]
    for line in failures:
        print(line)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
