"""Tier layouts: how a segment's files become objects."""

from __future__ import annotations

from typing import Final

from stratalog.spi import OpenContext, Provider, TierLayout
from stratalog_formats.layouts.single import NAME, VERSION, SingleLayout


def _open_single(context: OpenContext) -> TierLayout:
    return SingleLayout(context.limits.fetch_chunk_bytes)


PROVIDERS: Final[tuple[Provider[TierLayout], ...]] = (
    Provider(name=NAME, version=VERSION, open=_open_single, capabilities=("one object a segment", "rebuild")),
)
