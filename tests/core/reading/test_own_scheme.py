"""Log directories in a plugin's segment store, which the URI scheme selects, are read without an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

import stratalog_local
from stratalog import Record, open_engine, open_reader
from stratalog.errors import ConfigError
from stratalog.spi import OpenContext, Provider, SegmentStore, hookimpl


class Plugin:
    @hookimpl
    def stratalog_segment_stores(self) -> Iterable[Provider[SegmentStore]]:
        (local,) = stratalog_local.stratalog_segment_stores()

        def opened(context: OpenContext) -> SegmentStore:
            return local.open(dataclasses.replace(context, location=str(context.location).removeprefix("acme://")))

        return [Provider(name="acme", open=opened, schemes=frozenset({"acme"}))]


def test_a_directory_with_a_scheme_of_its_own_is_read(tmp_path: Path) -> None:
    uri = f"acme://{tmp_path / 'data'}"
    with open_engine(uri, plugins=[Plugin()]) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
    with open_reader(uri, plugins=[Plugin()]) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == [b"v"]
        assert reader.tier is None
    with pytest.raises(ConfigError, match="as_of needs a tier"):
        open_reader(uri, plugins=[Plugin()], as_of=1)
