"""Kafka's storage layer as a library, open to plugins, with tiers behind it."""

from __future__ import annotations

from stratalog.client.consumer import Consumer
from stratalog.client.offsets import CommittedOffset
from stratalog.client.pending import RecordMetadata
from stratalog.client.producer import Producer, ProducerOptions
from stratalog.engine.engine import Engine
from stratalog.engine.open import open_engine
from stratalog.log.fetch import Fetched
from stratalog.log.log import Log
from stratalog.log.reader import LogReader
from stratalog.log.send import Transfer
from stratalog.log.write import AppendResult
from stratalog.model.batches import TimestampType
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import Durability, EpochEnd, Isolation, LogOffsets
from stratalog.model.records import Record, RecordColumns
from stratalog.reading.open import open_reader
from stratalog.reading.reader import Reader, TopicInfo
from stratalog.segment.convert import Converted

__version__ = "0.1.0"

__all__ = [
    "AppendResult",
    "CommittedOffset",
    "Consumer",
    "Converted",
    "Durability",
    "Engine",
    "EpochEnd",
    "Fetched",
    "Isolation",
    "Log",
    "LogOffsets",
    "LogReader",
    "Producer",
    "ProducerOptions",
    "Reader",
    "Record",
    "RecordColumns",
    "RecordMetadata",
    "TimestampType",
    "TopicId",
    "TopicInfo",
    "TopicPartition",
    "Transfer",
    "open_engine",
    "open_reader",
]
