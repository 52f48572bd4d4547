"""A situation for each public error: the examples of docs/reference/errors.md, which shows the folder as ``data``."""

from __future__ import annotations

import base64
import errno
import gzip
import random
import socket
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from error_situations import (
    Situation,
    batch_of,
    log_situation,
    open_orders,
    producer_situation,
    store_situation,
    system_situation,
)

from stratalog import Log, ProducerId, Record, TopicId, TopicPartition, open_engine, open_reader
from stratalog.client.transactions.transaction_states import add_partitions, check_producer, initialize, prepare_end
from stratalog.config.settings_sources import Settings
from stratalog.engine.engine import Engine
from stratalog.env import SystemClock
from stratalog.epochs.checkpoint import parse_offsets
from stratalog.errors import StorageError, StoreError, StoreTimeoutError, StoreUntrustedError
from stratalog.model.offsets import next_epoch
from stratalog.producers.snapshot import decode_snapshot
from stratalog.reading.open_reader import open_host
from stratalog.spi import CodecTable, Provider, StoredSegment, hookimpl
from stratalog.tier.manifest.root_codec import parse_root
from stratalog.tier.store.availability import TierAvailability
from stratalog.writing.write_target import WriteTarget
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.indexes.offset import OffsetIndex

EXAMPLES: Final[dict[str, Situation]] = {}
LOG: Final = TopicPartition("orders", 0)
_TOPIC_ID: Final = TopicId.random(random.Random(1))  # noqa: S311 - the same in every run
_ONE: Final = [Record(value=b"1")]


def text_of(name: str, folder: Path) -> str:
    """Return the text of the example of an error class, without the paths of this machine.

    Raises:
        LookupError: there is no example, or its situation raised no error of exactly this class.
    """
    raised: StorageError | None = None
    try:
        EXAMPLES[name](folder)
    except StorageError as error:
        raised = error
    if type(raised).__name__ != name:
        raise LookupError(name) from raised
    return str(raised).replace(str(folder), "data")


def example(name: str) -> Callable[[Situation], Situation]:
    """Return a decorator that adds a situation for the error class of this name."""

    def add(situation: Situation) -> Situation:
        EXAMPLES[name] = situation
        return situation

    return add


# --- calls, settings, plugins ------------------------------------------------------------------------------------


@example("ConfigError")
def _no_directory(_: Path) -> None:
    open_engine([])


@example("AttachError")
def _attached_over_records(folder: Path) -> None:
    with open_orders(folder, tiered=True):
        pass
    open_engine(folder / "logs", tier=(folder / "bucket").as_uri(), attach=True)


@example("PluginError")
def _misnamed_provider(_: Path) -> None:
    Provider(name="My Codec", open=lambda _: None)


@example("PluginImportError")
def _missing_module(folder: Path) -> None:
    (folder / "stratalog.toml").write_text('[plugins]\nmodules = ["wholesale"]\n', encoding="utf-8")
    open_engine(folder / "logs", config=folder / "stratalog.toml")


class _Store:
    @hookimpl
    def stratalog_object_stores(self) -> list[Provider[Any]]:
        return [Provider(name="acme", open=lambda _: None, schemes=frozenset({"file"}))]


@example("PluginClashError")
def _second_store_of_a_scheme(folder: Path) -> None:
    open_engine(folder / "logs", tier=folder.as_uri(), plugins=[_Store()])


EXAMPLES["WrongTypeError"] = log_situation(lambda _, log: log.fetch(cast("Any", "5")))
EXAMPLES["UnknownSettingError"] = log_situation(
    lambda engine, _: engine.create_topic("payments", config={"retention.time": 1})
)
EXAMPLES["InvalidTopicError"] = log_situation(lambda engine, _: engine.create_topic("orders/eu"))
EXAMPLES["TopicExistsError"] = log_situation(lambda engine, _: engine.create_topic("orders"))
EXAMPLES["UnknownTopicError"] = log_situation(lambda engine, _: engine.log("payments", 0))
EXAMPLES["PolicyViolationError"] = log_situation(lambda _, log: log.delete_records(0), cleanup_policy="compact")
EXAMPLES["UnknownComponentError"] = log_situation(
    lambda engine, _: engine.create_topic("payments", config={"cleanup.policy": "newest"})
)


# --- records and offsets -----------------------------------------------------------------------------------------


EXAMPLES["OutOfOrderSequenceError"] = producer_situation(batch_of())
EXAMPLES["InvalidProducerEpochError"] = producer_situation(batch_of(), epoch=2)
EXAMPLES["InvalidTxnStateError"] = producer_situation(batch_of(base_sequence=0), transaction_first_offset=40)
EXAMPLES["TransactionCoordinatorFencedError"] = producer_situation(
    batch_of(is_control=True), types.SimpleNamespace(coordinator_epoch=2)
)
EXAMPLES["InvalidRecordError"] = log_situation(lambda _, log: log.append(_ONE), cleanup_policy="compact")
EXAMPLES["InvalidTimestampError"] = log_situation(
    lambda _, log: log.append([Record(value=b"1", timestamp_ms=1 << 50)]),
    message_timestamp_after_max_ms=0,
)
EXAMPLES["RecordTooLargeError"] = log_situation(
    lambda _, log: log.append([Record(value=bytes(200))]), max_message_bytes=100
)
EXAMPLES["OffsetOutOfRangeError"] = log_situation(lambda _, log: log.fetch(7))


@example("ProducerFencedError")
def _second_producer(folder: Path) -> None:
    with open_orders(folder) as (engine, _):
        first = engine.producer(transactional_id="billing")
        first.begin_transaction()
        engine.producer(transactional_id="billing")
        first.send("orders", value=b"1")
        first.commit_transaction()


@example("InvalidProducerIdMappingError")
def _unknown_transactional_id(folder: Path) -> None:
    with open_orders(folder) as (engine, _):
        engine.transactions.end("billing", ProducerId(7, 0), commit=True)


@example("ConcurrentTransactionsError")
def _second_end(folder: Path) -> None:
    del folder
    state = initialize(None, 60_000, 0, None, lambda: 7, rotates=False)
    state = add_partitions(state, state.producer, [TopicPartition("orders", 0)], 0)
    check_producer(prepare_end(state, state.producer, 0, commit=True), state.producer)


@example("NoOffsetError")
def _unread_group(folder: Path) -> None:
    with open_orders(folder) as (engine, _):
        engine.consumer(topics=["orders"], group="billing", auto_offset_reset="none").poll()


@example("SerializationError")
def _unreadable_value(folder: Path) -> None:
    with open_orders(folder) as (engine, log):
        log.append([Record(value=b"1,50")])
        with engine.consumer(topics=["orders"], auto_offset_reset="earliest", value_deserializer=float) as consumer:
            consumer.poll()


# --- damaged bytes -----------------------------------------------------------------------------------------------

EXAMPLES["CorruptCheckpointError"] = lambda folder: parse_offsets(b"0\n2\norders 0 4\n", f"{folder}/checkpoint")
EXAMPLES["CorruptSnapshotError"] = lambda folder: decode_snapshot(b"\0", f"{folder}/orders-0/7.snapshot")
EXAMPLES["CorruptManifestError"] = lambda _: parse_root(b"[]", LOG, _TOPIC_ID, 4, limit_bytes=1 << 20)
EXAMPLES["CorruptIndexError"] = lambda _: OffsetIndex().reader(b"123", 0).check(7, 100)
EXAMPLES["DecompressedSizeError"] = lambda _: GzipCodec().decompress(gzip.compress(bytes(99)), limit_bytes=9, magic=2)
EXAMPLES["CorruptBatchError"] = log_situation(lambda _, log: log.append_as_leader(bytes(80)))


# --- directories and stores --------------------------------------------------------------------------------------

EXAMPLES["LogDirPermissionError"] = system_situation(errno.EACCES)
EXAMPLES["LogDirOfflineError"] = system_situation(errno.EIO)
EXAMPLES["NotAFileError"] = system_situation(errno.EISDIR)
EXAMPLES["SystemLimitError"] = system_situation(errno.EMFILE)
EXAMPLES["DiskFullError"] = system_situation(errno.ENOSPC)


@example("LogDirNotFoundError")
def _no_such_directory(folder: Path) -> None:
    open_reader(folder / "logs")


@example("LogDirLockedError")
def _second_engine(folder: Path) -> None:
    with open_orders(folder):
        open_engine(folder / "logs")


# --- roles and epochs --------------------------------------------------------------------------------------------

EXAMPLES["EpochsExhaustedError"] = lambda _: next_epoch((1 << 31) - 1, LOG)
EXAMPLES["StaleLeaderEpochError"] = log_situation(lambda _, log: log.lead(5), lambda _, log: log.lead(4))
EXAMPLES["UnknownLeaderEpochError"] = log_situation(lambda _, log: log.fetch(0, current_leader_epoch=9))
EXAMPLES["NotLeaderOrFollowerError"] = log_situation(lambda _, log: log.follow(5), lambda _, log: log.append(_ONE))
EXAMPLES["ClosedError"] = log_situation(lambda engine, _: engine.close(), lambda _, log: log.append(_ONE))


EXAMPLES["OffsetsExhaustedError"] = log_situation(
    lambda _, log: log.truncate_fully_and_start_at((1 << 63) - 2),
    lambda _, log: log.append(_ONE * 2),
)
EXAMPLES["RecordBatchTooLargeError"] = log_situation(
    lambda _, log: log.append([Record(value=bytes(300))]), segment_bytes=100
)
EXAMPLES["UnsupportedCompressionError"] = lambda _: CodecTable().by_id(4)


def _copy_batches(log: Log, *offsets: int) -> bytes:
    """Append two batches, make the log a follower, and return the bytes of the batches at these offsets."""
    log.append(_ONE)
    log.append(_ONE)
    data = b""
    for offset in offsets:
        with log.fetch(offset, max_bytes=1) as fetched:
            data += bytes(fetched.slices[0].data)
    log.follow(5)
    return data


def _below_the_end(_: Engine, log: Log) -> None:
    log.append_as_follower(_copy_batches(log, 0), 0, 0)


def _in_disorder(_: Engine, log: Log) -> None:
    data = _copy_batches(log, 1, 0)
    log.truncate_to(0)
    log.append_as_follower(data, 0, 0)


EXAMPLES["UnexpectedAppendOffsetError"] = log_situation(_below_the_end)
EXAMPLES["OffsetsOutOfOrderError"] = log_situation(_in_disorder)


@example("TransactionAbortedError")
def _lost_record(folder: Path) -> None:
    with open_orders(folder, max_message_bytes=200) as (engine, _):
        producer = engine.producer(transactional_id="billing")
        producer.begin_transaction()
        producer.send("orders", value=bytes(300))
        producer.commit_transaction()


@example("UnsupportedForMessageFormatError")
def _transaction_in_old_records(folder: Path) -> None:
    with open_orders(folder, record_version=1) as (engine, _):
        producer = engine.producer(transactional_id="billing")
        producer.begin_transaction()
        sent = producer.send("orders", value=b"1")
        producer.flush()
        sent.result()


# --- tiers -------------------------------------------------------------------------------------------------------


def _offload(engine: Engine, log: Log) -> None:
    log.append(_ONE)
    log.roll()
    engine.offload()


EXAMPLES["OffsetInTierError"] = log_situation(_offload, lambda _, log: log.truncate_to(0), tiered=True)
EXAMPLES["LocalLimitError"] = log_situation(
    lambda _, log: log.append(_ONE),
    tiered=True,
    local_hard_limit_bytes=1,
    tier_outage_policy="reject",
)
EXAMPLES["CorruptObjectError"] = lambda folder: StoredSegment.from_json({}, f"{folder}/bucket/0.seg")
EXAMPLES["BucketNotFoundError"] = lambda folder: open_engine(folder / "logs", tier=(folder / "no" / "bucket").as_uri())


@example("FencedEpochError")
def _taken_over(folder: Path) -> None:
    with open_orders(folder, tiered=True) as (engine, log):
        _offload(engine, log)
        with open_engine(folder / "other", tier=(folder / "bucket").as_uri(), attach=True):
            pass
        _offload(engine, log)


@example("ObjectNotFoundError")
def _missing_object(folder: Path) -> None:
    with open_orders(folder, tiered=True, local_retention_bytes=1) as (engine, log):
        _offload(engine, log)
        log.append(_ONE)
        engine.apply_retention()
        for path in folder.rglob("*.seg"):
            path.unlink()
        log.fetch(0)


EXAMPLES["StorePermissionError"] = store_situation("AccessDenied", 403, "Access Denied")
EXAMPLES["StoreThrottledError"] = store_situation("SlowDown", 503, "Please reduce your request rate.")
EXAMPLES["StoreTimeoutError"] = store_situation(
    "RequestTimeout", 400, "Your socket connection to the server was not read from."
)


@example("FileReplacedError")
def _removed_file(folder: Path) -> None:
    with open_orders(folder) as (_, log):
        log.append(_ONE)
        for path in folder.rglob("*.log"):
            path.unlink()
        log.append(_ONE, "durable")


@example("ReadOnlyError")
def _write_of_a_reader(folder: Path) -> None:
    with open_orders(folder):
        pass
    open_host(Settings(), (), None).segment_store(str(folder / "logs"), read_only=True).replace_small("note", b"1")


@example("SegmentGoneError")
def _transfer_of_truncated_records(folder: Path) -> None:
    ends = socket.socketpair()
    with ends[0], ends[1], open_orders(folder) as (_, log):
        log.append(_ONE)
        with log.transfer(0, isolation="log_end") as ready:
            log.truncate_to(0)
            ready.send(ends[0])


@example("EngineAheadError")
def _job_beside_an_engine_with_more_records(folder: Path) -> None:
    with open_orders(folder, tiered=True) as (engine, log):
        log.append(_ONE)
        log.roll()
        log.append(_ONE)
        engine.offload()
    with WriteTarget((folder / "bucket").as_uri()).open() as writer:
        writer.stage(LOG).finish()


@example("TamperedManifestError")
def _manifest_without_a_mac(folder: Path) -> None:
    with open_orders(folder, tiered=True) as (engine, log):
        _offload(engine, log)
    keys = folder / "keys.toml"
    keys.write_text(f'active = "first"\n[keys]\nfirst = "{base64.b64encode(bytes(32)).decode()}"\n', encoding="utf-8")
    keys.chmod(0o600)
    strict = {"keys.file": str(keys), "manifest.unauthenticated": "refuse"}
    with open_reader((folder / "bucket").as_uri(), config={"plugins": {"encrypted": strict}}) as reader:
        list(reader.log("orders", 0).records())


@example("LogInUseError")
def _job_beside_an_engine(folder: Path) -> None:
    with open_orders(folder, tiered=True) as (engine, log):
        _offload(engine, log)
    with WriteTarget((folder / "bucket").as_uri()).open() as writer:
        writer.stage(LOG).finish()


def _unavailable(cause: StoreError) -> None:
    TierAvailability("s3://bucket", SystemClock(), cast("Any", None), None, cause).check()


EXAMPLES["TierUnavailableError"] = lambda _: _unavailable(StoreTimeoutError("no answer", "s3://bucket"))
EXAMPLES["StoreUntrustedError"] = lambda _: _unavailable(StoreUntrustedError("it overwrites objects", "s3://bucket"))
