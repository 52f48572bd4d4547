"""Kafka's storage layer as a library, with plugins and tiered storage."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stratalog import aio as aio
    from stratalog import errors as errors
    from stratalog.client.committed_offsets import CommittedOffset
    from stratalog.client.consumer import Consumer
    from stratalog.client.pending import RecordMetadata
    from stratalog.client.producer import Producer, ProducerOptions
    from stratalog.client.sequences import ProducerId
    from stratalog.client.serializers import DeserializedRecord
    from stratalog.client.transactions.coordinator import TransactionCoordinator
    from stratalog.engine.engine import Engine
    from stratalog.engine.open_engine import open_engine
    from stratalog.env.progress import Progress
    from stratalog.log.append.append import AppendResult
    from stratalog.log.log import Log
    from stratalog.log.read.down_convert import Converted
    from stratalog.log.read.fetch import Fetched
    from stratalog.log.read.log_reader import LogReader
    from stratalog.log.read.transfer import Transfer
    from stratalog.model.batches import TimestampType
    from stratalog.model.messages.transactions_topic import TransactionState
    from stratalog.model.metrics import HistogramSample, Metric, MetricKind, Sample
    from stratalog.model.names import TopicId, TopicPartition
    from stratalog.model.offsets import Durability, EpochEnd, Isolation, LogOffsets
    from stratalog.model.records import Record, RecordColumns
    from stratalog.reading.open_reader import open_reader
    from stratalog.reading.reader import Reader, TopicInfo
    from stratalog.reading.topic_table import TopicSetting

__version__ = "0.1.0"

__all__ = [
    "AppendResult", "CommittedOffset", "Consumer", "Converted", "DeserializedRecord", "Durability", "Engine",
    "EpochEnd", "Fetched", "HistogramSample", "Isolation", "Log", "LogOffsets", "LogReader", "Metric", "MetricKind",
    "Producer", "ProducerId", "ProducerOptions", "Progress", "Reader", "Record", "RecordColumns", "RecordMetadata",
    "Sample", "TimestampType", "TopicId", "TopicInfo", "TopicPartition", "TopicSetting", "TransactionCoordinator",
    "TransactionState", "Transfer", "open_engine", "open_reader",
]  # fmt: skip

_HOMES: Final = {
    "stratalog.client.consumer": ("Consumer",),
    "stratalog.client.transactions.coordinator": ("TransactionCoordinator",),
    "stratalog.client.committed_offsets": ("CommittedOffset",),
    "stratalog.client.pending": ("RecordMetadata",),
    "stratalog.client.producer": ("Producer", "ProducerOptions"),
    "stratalog.client.sequences": ("ProducerId",),
    "stratalog.client.serializers": ("DeserializedRecord",),
    "stratalog.engine.engine": ("Engine",),
    "stratalog.engine.open_engine": ("open_engine",),
    "stratalog.log.read.fetch": ("Fetched",),
    "stratalog.log.log": ("Log",),
    "stratalog.log.read.log_reader": ("LogReader",),
    "stratalog.log.read.transfer": ("Transfer",),
    "stratalog.log.append.append": ("AppendResult",),
    "stratalog.model.batches": ("TimestampType",),
    "stratalog.model.messages.transactions_topic": ("TransactionState",),
    "stratalog.model.metrics": ("HistogramSample", "Metric", "MetricKind", "Sample"),
    "stratalog.model.names": ("TopicId", "TopicPartition"),
    "stratalog.model.offsets": ("Durability", "EpochEnd", "Isolation", "LogOffsets"),
    "stratalog.env.progress": ("Progress",),
    "stratalog.model.records": ("Record", "RecordColumns"),
    "stratalog.reading.open_reader": ("open_reader",),
    "stratalog.reading.reader": ("Reader", "TopicInfo"),
    "stratalog.reading.topic_table": ("TopicSetting",),
    "stratalog.log.read.down_convert": ("Converted",),
}

_MODULES: Final = frozenset({"aio", "errors"})
"""Public modules that are imported at their first use as an attribute of ``stratalog``."""


if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name

    def __getattr__(name: str) -> object:
        """Import a public name at its first use, because this keeps `import stratalog` fast.

        Raise AttributeError for other names. Source: PEP 562.
        """
        if name in _MODULES:
            return import_module(f"stratalog.{name}")
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(home), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the public names, including those that are not imported yet."""
        return sorted({*globals(), *__all__})
