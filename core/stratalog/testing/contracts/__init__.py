"""Contract classes: subclass one, give its fixture, and pytest checks a component of that kind."""

from __future__ import annotations

from stratalog.testing.contracts.index_format import IndexFormatContract
from stratalog.testing.contracts.segment_store import SegmentStoreContract, StoreOpener

__all__ = ["IndexFormatContract", "SegmentStoreContract", "StoreOpener"]
