"""The contract of record formats for both implementations of the kernels, compiled and pure Python."""

from __future__ import annotations

import pytest

import twins
from stratalog.spi import Codec, RecordFormat
from stratalog.testing.contracts import RecordFormatContract
from stratalog_formats.kernels.dispatch import Kernels


@pytest.fixture(params=twins.TWINS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return twins.kernels_of(request.param)


@pytest.fixture
def codec() -> Codec:
    return twins.CODECS["lz4"]


class TestV0(RecordFormatContract):
    has_timestamps = False
    has_headers = False
    batches_are_records = True
    checked_from = 12

    @pytest.fixture
    def record_format(self, kernels: Kernels) -> RecordFormat:
        return twins.formats(kernels)["v0"]

    @pytest.fixture
    def codec(self, codec: Codec) -> Codec:
        return codec


class TestV1(RecordFormatContract):
    has_headers = False
    batches_are_records = True
    checked_from = 12

    @pytest.fixture
    def record_format(self, kernels: Kernels) -> RecordFormat:
        return twins.formats(kernels)["v1"]

    @pytest.fixture
    def codec(self, codec: Codec) -> Codec:
        return codec


class TestV2(RecordFormatContract):
    @pytest.fixture
    def record_format(self, kernels: Kernels) -> RecordFormat:
        return twins.formats(kernels)["v2"]

    @pytest.fixture
    def codec(self, codec: Codec) -> Codec:
        return codec
