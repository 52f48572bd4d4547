"""The kinds of components that plugins offer.

A collecting hook is a hook with which plugins offer components. Each collecting hook has one kind, except
``stratalog_commands``: commands are not components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.spi.cleanup import CleanupPolicy
from stratalog.spi.codecs import Codec
from stratalog.spi.extra import ExtraIndex
from stratalog.spi.formats import RecordFormat
from stratalog.spi.hooks import PROJECT
from stratalog.spi.indexes import IndexFormat
from stratalog.spi.layouts import TierLayout
from stratalog.spi.objects import ObjectStore
from stratalog.spi.segment_store import SegmentStore
from stratalog.spi.service_contract import Service


@dataclass(frozen=True, slots=True)
class ComponentKind:
    """One kind of component.

    Attributes:
        key: plural name with underscores, such as ``tier_layouts``: the hook's name without ``stratalog_``, and the key
            in ``PluginInfo.offers``.
        title: singular name for texts, such as ``tier layout``.
        component: type of the result of ``Provider.open``.
        has_schemes: True if a provider is looked up by the scheme of a URI; ``Provider.open`` then needs a location.
        writes_bytes: True if files or manifests contain the ``name@version`` of such components.
    """

    key: str
    title: str
    component: type[object]
    has_schemes: bool = False
    writes_bytes: bool = False

    @property
    def hook(self) -> str:
        """The name of the hook with which plugins offer components of this kind."""
        return f"{PROJECT}_{self.key}"


RECORD_FORMATS: Final = ComponentKind("record_formats", "record format", RecordFormat, writes_bytes=True)
CODECS: Final = ComponentKind("codecs", "codec", Codec, writes_bytes=True)
INDEX_FORMATS: Final = ComponentKind("index_formats", "index format", IndexFormat, writes_bytes=True)
EXTRA_INDEXES: Final = ComponentKind("extra_indexes", "extra index", ExtraIndex, writes_bytes=True)
SEGMENT_STORES: Final = ComponentKind("segment_stores", "segment store", SegmentStore, has_schemes=True)
OBJECT_STORES: Final = ComponentKind("object_stores", "object store", ObjectStore, has_schemes=True)
TIER_LAYOUTS: Final = ComponentKind("tier_layouts", "tier layout", TierLayout, writes_bytes=True)
CLEANUP_POLICIES: Final = ComponentKind("cleanup_policies", "cleanup policy", CleanupPolicy)
SERVICES: Final = ComponentKind("services", "service", Service)

KINDS: Final = (
    RECORD_FORMATS, CODECS, INDEX_FORMATS, EXTRA_INDEXES, SEGMENT_STORES, OBJECT_STORES, TIER_LAYOUTS,
    CLEANUP_POLICIES, SERVICES,
)  # fmt: skip
