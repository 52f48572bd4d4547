"""The hooks of the documentation site: every document has a page, and links lead to pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_hooks import adapt_links, complete, site_paths

ROOT = Path(__file__).parents[2]
PATHS = {
    "README.md": "index.md",
    "docs/tier.md": "tier.md",
    "docs/formats/tier.md": "formats/tier.md",
    "docs/images/tiers.svg": "images/tiers.svg",
    "examples/replica/README.md": "examples/replica.md",
}


def test_every_document_for_readers_has_a_page() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/README.md")]
    paths = site_paths(ROOT)
    assert {str(path.relative_to(ROOT)) for path in documents} <= set(paths)
    assert len(set(paths.values())) == len(paths)


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("README.md", "[the tier](docs/tier.md#history)", "[the tier](tier.md#history)"),
        ("README.md", "![two tiers](docs/images/tiers.svg)", "![two tiers](images/tiers.svg)"),
        ("docs/tier.md", "[bytes](formats/tier.md)", "[bytes](formats/tier.md)"),
        ("docs/formats/tier.md", "[home](../../README.md)", "[home](../index.md)"),
        ("docs/tier.md", "[a replica](../examples/replica)", "[a replica](examples/replica.md)"),
        ("examples/replica/README.md", "[`tier`](../../docs/tier.md)", "[`tier`](../tier.md)"),
        ("README.md", "[its test](tests/oracle/test_broker.py)", "its test"),
        (
            "README.md",
            "[here](#here), [there](https://example.org/a.md)",
            "[here](#here), [there](https://example.org/a.md)",
        ),
        ("README.md", "`[code](docs/tier.md)`", "`[code](docs/tier.md)`"),
        ("README.md", "```\n[code](docs/tier.md)\n```\n", "```\n[code](docs/tier.md)\n```\n"),
    ],
)
def test_a_link_leads_to_the_page_of_its_document(document: str, text: str, expected: str) -> None:
    assert adapt_links(text, document, PATHS) == expected


def test_the_navigation_has_every_page_once() -> None:
    pages = ["index.md", "a.md", "b.md", "formats/c.md", "formats/deep/d.md"]
    nav = ["index.md", {"How-to": ["b.md", "*"]}, {"Reference": [{"Formats": ["formats/*"]}]}]
    assert complete(nav, pages) == [
        "index.md",
        {"How-to": ["b.md", "a.md"]},
        {"Reference": [{"Formats": ["formats/c.md"]}]},
    ]
