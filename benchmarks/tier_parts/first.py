"""Number of requests to the store for the first record of a cold log."""

from __future__ import annotations

from typing import Final

from harness import Verdict
from stratalog import open_reader
from tier_parts.logs import REMOTE, MadeLog, Store

FIRST: Final = "tier/first"
_TITLE: Final = "first record of a cold remote fetch"
_ATTACHED: Final = 3
_WARM: Final = 2


def first_verdicts(made: MadeLog, store: Store) -> list[Verdict]:
    """Requests from a reader that was just opened to records in the middle of the log, and to the first ones then."""
    middle = made.records * 2 // 3
    with open_reader(store.uri, tier_options=dict(store.options)) as reader:
        assert reader.tier is not None
        tier, counts = reader.tier, []
        log = reader.log(REMOTE, 0)
        counts.append(tier.metrics().store.requests)
        for offset in (middle, 0):
            with log.fetch(offset) as fetched:
                assert fetched.next_offset > offset
            counts.append(tier.metrics().store.requests)
    attached, first, second = counts[0], counts[1] - counts[0], counts[2] - counts[1]
    rows = (
        ("attached", f"{first} requests after {attached} to attach", first, _ATTACHED),
        ("warm", f"{second} requests in another segment once the root is known", second, _WARM),
    )
    return [
        Verdict(_TITLE, f"{FIRST}/{name}", measured, f"at most {most} requests", figure, figure <= most)
        for name, measured, figure, most in rows
    ]
