"""The contract of layouts, for the layouts ``plain`` and ``chunked``."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.spi import StoredSegment, TierLayout
from stratalog.testing.contracts import TierLayoutContract
from stratalog.testing.contracts.made_segments import MemoryObjects
from stratalog_formats.layouts.chunked import ChunkedLayout
from stratalog_formats.layouts.plain import PlainLayout
from stratalog_formats.layouts.sections import ChunkedSection

PIECE_BYTES = 5_000


class TestPlain(TierLayoutContract):
    @pytest.fixture
    def layout(self) -> TierLayout:
        return PlainLayout(PIECE_BYTES)

    def test_discovery_is_not_skipped(self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
        assert list(layout.discover(objects.infos(), objects.fetch)) == [dataclasses.replace(stored, layout="plain@1")]


class TestChunked(TierLayoutContract):
    @pytest.fixture
    def layout(self) -> TierLayout:
        return ChunkedLayout(PIECE_BYTES, ChunkedSection(chunk_bytes=4096))

    def test_discovery_is_not_skipped(self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
        assert list(layout.discover(objects.infos(), objects.fetch)) == [
            dataclasses.replace(stored, layout="chunked@1")
        ]
