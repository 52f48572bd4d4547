"""Number of store requests for the first record of a log that is in the tier only, with empty caches."""

from __future__ import annotations

from typing import Final

from harness import Verdict
from stratalog import open_reader
from tier_parts.logs import REMOTE, LocalLog, Store

FIRST: Final = "tier/first"
_TITLE: Final = "first record of a cold remote fetch"
_ATTACHED: Final = 3
_WARM: Final = 2


def first_verdicts(local_log: LocalLog, store: Store) -> list[Verdict]:
    """Return verdicts on the store requests of two reads by a new reader.

    The first read is in the middle of the log. The second one is at its start, in another segment.
    """
    middle = local_log.records * 2 // 3
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
        Verdict(_TITLE, f"{FIRST}/{name}", measured, f"at most {limit} requests", figure, figure <= limit)
        for name, measured, figure, limit in rows
    ]
