"""Contract classes for plugin authors.

Subclass the class of the component's kind and override its fixture. pytest then checks the component.
"""

from __future__ import annotations

from stratalog.testing.contracts.cleanup_policy import CleanupPolicyContract
from stratalog.testing.contracts.codec import CodecContract
from stratalog.testing.contracts.engine import EngineContract
from stratalog.testing.contracts.engine_bed import EngineSetup
from stratalog.testing.contracts.extra_index import ExtraIndexContract
from stratalog.testing.contracts.index_format import IndexFormatContract
from stratalog.testing.contracts.object_store import ObjectStoreContract
from stratalog.testing.contracts.record_format import RecordFormatContract
from stratalog.testing.contracts.segment_files import StoreOpener
from stratalog.testing.contracts.segment_store import SegmentStoreContract
from stratalog.testing.contracts.service import ServiceContract
from stratalog.testing.contracts.tier_layout import TierLayoutContract

__all__ = [
    "CleanupPolicyContract", "CodecContract", "EngineContract", "EngineSetup", "ExtraIndexContract",
    "IndexFormatContract", "ObjectStoreContract", "RecordFormatContract", "SegmentStoreContract", "ServiceContract",
    "StoreOpener", "TierLayoutContract",
]  # fmt: skip
