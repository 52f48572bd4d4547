"""Hooks of MkDocs: add the documents outside of docs/ to the site, complete the navigation, and adapt links.

The documents are written for a code host. On the site, a link to a document leads to its page, and a link to another
file of the repository becomes plain text, because the site does not contain that file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from check_links import CODE, ELSEWHERE, FENCE, LINK

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
_OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
_CODE_OR_LINK: Final = re.compile(f"{FENCE.pattern}|{LINK.pattern}|{CODE.pattern}", re.MULTILINE | re.DOTALL)


def site_paths(root: Path) -> dict[str, str]:
    """Return the path on the site of each document and picture, by its path in the repository ``root``."""
    page_by_file = {name: page for name, page in _OUTSIDE.items() if (root / name).is_file()}
    for readme in sorted(root.glob("examples/*/README.md")):
        page_by_file[readme.relative_to(root).as_posix()] = f"examples/{readme.parent.name}.md"
    for file in sorted((root / "docs").rglob("*")):
        if file.is_file():
            page_by_file[file.relative_to(root).as_posix()] = file.relative_to(root / "docs").as_posix()
    return page_by_file


def adapt_links(text: str, document: str, paths: Mapping[str, str]) -> str:
    """Return the Markdown ``text`` of ``document``, a path in the repository, with links for the site."""

    def adapt(match: re.Match[str]) -> str:
        link, label = match["link"], match["label"]
        if link is None or ELSEWHERE.match(link) or link.startswith("#"):
            return match[0]
        path, mark, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
        page = paths.get(target) or paths.get(f"{target}/README.md")
        if page is None:
            return str(label)
        relative = posixpath.relpath(page, posixpath.dirname(paths[document]) or ".")
        return f"{match[0][: match.start('link') - match.start()]}{relative}{mark}{anchor}{match[0][match.end('link') - match.start() :]}"

    return _CODE_OR_LINK.sub(adapt, text)


def complete(entries: Any, pages: list[str]) -> Any:
    """Return the navigation ``entries`` with each pattern that ends with ``*`` replaced by the pages that match it.

    Pages that ``entries`` already contains are left out.
    """
    listed_pages = set(_names(entries))

    def expand(entry: Any) -> Iterator[Any]:
        if isinstance(entry, dict):
            yield {title: _expand_all(value, expand) for title, value in entry.items()}
        elif entry.endswith("*"):
            yield from (
                page
                for page in pages
                if page not in listed_pages and fnmatch(page, entry) and page.count("/") == entry.count("/")
            )
        else:
            yield entry

    return _expand_all(entries, expand)


def _expand_all(value: Any, expand: Any) -> Any:
    return [expanded for entry in value for expanded in expand(entry)] if isinstance(value, list) else value


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    else:
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _names(entry)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the patterns in the site's navigation by the matching pages, and return the configuration."""
    pages = sorted(page for page in site_paths(ROOT).values() if page.endswith(".md"))
    config.nav = complete(config.nav, pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside of docs/ to the files of the site, and return the files."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests of this module run without MkDocs

    for name, page in site_paths(ROOT).items():
        if not name.startswith("docs/"):
            files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the Markdown of a page with adapted links."""
    paths = site_paths(ROOT)
    source = next(name for name, path in paths.items() if path == page.file.src_uri)
    return adapt_links(markdown, source, paths)
