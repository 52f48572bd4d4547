"""Frequent mistakes at each public entry point in Python: a typed error, the place of the error, and advice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Consumer, Engine, Reader, Record, open_engine, open_reader
from stratalog.engine.restore.restore import RestoreRequest, restore
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    BucketNotFoundError,
    ConfigError,
    LogDirError,
    LogDirLockedError,
    LogDirNotFoundError,
    PluginImportError,
    StorageError,
    StorePermissionError,
    UnknownComponentError,
    UnknownTopicError,
)
from stratalog.testing.s3 import LocalS3
from stratalog.writing import WriteTarget

Open = Callable[[str], object]


def write_to(place: str) -> None:
    """Create a topic with a bulk writer. The writer locks its directory at this call, and waits for the lock."""
    with WriteTarget(place).open(env=Env(clock=ManualClock())) as writer:
        writer.create_topic("new", 1)


DIRECTORIES: dict[str, Open] = {
    "open_engine": open_engine,
    "open_engine, of several": lambda place: open_engine([place]),
    "open_reader": open_reader,
    "BulkWriter.create_topic": write_to,
}
WRITERS: dict[str, Open] = {name: call for name, call in DIRECTORIES.items() if name != "open_reader"}
TIERS: dict[str, Callable[[str, dict[str, object]], object]] = {
    "open_engine": lambda uri, options: open_engine("new", tier=uri, tier_options=options),
    "open_engine, attach": lambda uri, options: open_engine("new", tier=uri, tier_options=options, attach=True),
    "open_reader": lambda uri, options: open_reader(uri, tier_options=options),
    "open_reader, tier": lambda uri, options: open_reader("data", tier=uri, tier_options=options),
    "restore": lambda uri, options: restore(uri, "restored", RestoreRequest(), tier_options=options),
    "WriteTarget.open": lambda uri, options: WriteTarget(uri, tier_options=options).open(),
}
ORDER = stratalog.TopicPartition("order", 0)
OF_ENGINES: dict[str, Callable[[Engine], object]] = {
    "log": lambda engine: engine.log("order"),
    "log, partition": lambda engine: engine.log("order", 0),
    "topic_settings": lambda engine: engine.topic_settings("order"),
    "alter_topic": lambda engine: engine.alter_topic("order", {"retention.ms": 1}),
    "create_partitions": lambda engine: engine.create_partitions("order", 2),
    "delete_topic": lambda engine: engine.delete_topic("order"),
    "move_partition": lambda engine: engine.move_partition("order", 0, "data"),
    "why_kept": lambda engine: engine.why_kept("order", 0),
    "erase": lambda engine: engine.erase("order", b"k"),
    "alter_group_offsets": lambda engine: engine.alter_group_offsets("billing", {ORDER: 0}),
    "offload": lambda engine: engine.offload([ORDER]),
    "apply_retention": lambda engine: engine.apply_retention([ORDER]),
    "run_cleaner": lambda engine: engine.run_cleaner([ORDER]),
    "plan_cleaner": lambda engine: engine.plan_cleaner([ORDER]),
    "make_extra_indexes": lambda engine: engine.make_extra_indexes([ORDER]),
    "tier_lag": lambda engine: engine.tier_lag([ORDER]),
    "verify": lambda engine: engine.verify([ORDER]),
    "consumer": lambda engine: engine.consumer(topics=["order"]),
    "Consumer.assign": lambda engine: engine.consumer().assign([ORDER]),
    "Consumer.commit": lambda engine: engine.consumer(group="billing", topics=["orders"]).commit({ORDER: 0}),
    "Producer.send": lambda engine: engine.producer().send("order", value=b"v"),
}
OF_CONSUMERS: dict[str, Callable[[Consumer[Record]], object]] = {
    "position": lambda consumer: consumer.position(ORDER),
    "seek": lambda consumer: consumer.seek(ORDER, 0),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(ORDER),
    "seek_to_end": lambda consumer: consumer.seek_to_end(ORDER),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets(ORDER),
    "end_offsets": lambda consumer: consumer.end_offsets(ORDER),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({ORDER: 0}),
    "pause": lambda consumer: consumer.pause(ORDER),
}
OF_READERS: dict[str, Callable[[Reader], object]] = {
    "log": lambda reader: reader.log("order"),
    "log, partition": lambda reader: reader.log("order", 0),
    "topic": lambda reader: reader.topic("order"),
    "open_logs": lambda reader: reader.open_logs([ORDER]),
}
EXTRAS: dict[str, tuple[Callable[[Reader], object], str, str]] = {
    "Log.to_arrow": (lambda reader: reader.log("orders").to_arrow(), "pyarrow", "stratalog[arrow]"),
    "TopicScan.to_arrow": (lambda reader: reader.topic("orders").scan().to_arrow(), "pyarrow", "stratalog[arrow]"),
    "TopicScan.reader": (lambda reader: reader.topic("orders").scan().reader(), "pyarrow", "stratalog[arrow]"),
    "TopicReader.dataset": (lambda reader: reader.topic("orders").dataset(), "pyarrow", "stratalog[arrow]"),
    "TopicScan.to_pandas": (lambda reader: reader.topic("orders").scan().to_pandas(), "pandas", "stratalog[pandas]"),
    "TopicScan.to_polars": (lambda reader: reader.topic("orders").scan().to_polars(), "polars", "stratalog[polars]"),
    "open_reader of s3://": (lambda _: open_reader("s3://bucket/prefix"), "s3fs", "stratalog[s3]"),
    "tier of s3://": (lambda _: open_engine("new", tier="s3://bucket/prefix"), "s3fs", "stratalog[s3]"),
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in a new working directory, without the credentials of this machine.

    The directory has the log directory ``data`` and its tier.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with open_engine("data") as engine:
        engine.create_topic("orders")
        engine.log("orders").append([Record(key=b"k", value=b"v")])


@pytest.fixture
def engine() -> Iterator[Engine]:
    with open_engine("data") as engine:
        yield engine


def refused(kind: type[StorageError], call: Callable[[], object]) -> str:
    """Call a function that must fail, and return the text of its error: the problem, a colon, and what to do."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert ": " in text or "; " in text, f"there is no advice: {text}"
    return text


def test_a_wrong_directory_is_named_by_a_reader() -> None:
    text = refused(LogDirNotFoundError, lambda: open_reader("no/such"))
    assert "no such file or directory path=no/such: check the path" in text
    assert not Path("no").exists()


@pytest.mark.parametrize("name", DIRECTORIES)
def test_the_folder_of_a_log_is_not_its_directory(name: str) -> None:
    text = refused(LogDirNotFoundError, lambda: DIRECTORIES[name]("data/orders-0"))
    assert f"this is the folder of one log path=data/orders-0: use its log directory, {Path('data').resolve()}" in text


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_file_is_not_a_directory(name: str) -> None:
    Path("file").write_text("no folder")
    text = refused(LogDirError, lambda: DIRECTORIES[name]("file"))
    assert "not a directory path=file" in text


@pytest.mark.parametrize("name", WRITERS)
def test_the_directory_of_a_running_engine_or_broker_is_refused(engine: Engine, name: str) -> None:
    text = refused(LogDirLockedError, lambda: WRITERS[name]("data"))
    assert "another engine or a running broker holds the directory path=data: stop the engine or broker" in text
    assert engine.log("orders").healthy


@pytest.mark.parametrize("name", OF_ENGINES)
def test_a_topic_with_a_near_name_is_named_by_an_engine(engine: Engine, name: str) -> None:
    text = refused(UnknownTopicError, lambda: OF_ENGINES[name](engine))
    assert "did you mean 'orders'?" in text
    assert list(engine.topics()) == ["orders"]


@pytest.mark.parametrize("name", OF_CONSUMERS)
def test_a_consumer_names_its_partitions(engine: Engine, name: str) -> None:
    with engine.consumer(group="billing", topics=["orders"]) as consumer:
        text = refused(UnknownTopicError, lambda: OF_CONSUMERS[name](consumer))
    assert text == "order-0 is not one of the consumer's partitions: orders-0"


@pytest.mark.parametrize("name", OF_READERS)
def test_a_topic_with_a_near_name_is_named_by_a_reader(name: str) -> None:
    with open_reader("data") as reader:
        text = refused(UnknownTopicError, lambda: OF_READERS[name](reader))
    assert "in data: did you mean 'orders'?" in text


@pytest.mark.parametrize("name", [*DIRECTORIES, *TIERS])
def test_a_uri_that_lacks_a_slash_is_corrected(name: str) -> None:
    call = (
        (lambda: DIRECTORIES[name]("s3:/bucket/prefix"))
        if name in DIRECTORIES
        else (lambda: TIERS[name]("s3:/bucket/prefix", {}))
    )
    assert "'s3:/bucket/prefix' is not a URI: use s3://bucket/prefix" in refused(ConfigError, call)
    assert not Path("s3:").exists()


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_deleted_working_directory_is_reported_with_the_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("deleted").resolve()
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert "no such file or directory path=logs" in refused(LogDirNotFoundError, lambda: DIRECTORIES[name]("logs"))


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_home_directory_that_no_shell_has_replaced_is_not_created(name: str) -> None:
    text = refused(ConfigError, lambda: DIRECTORIES[name]("~/logs"))
    assert text == "only a shell replaces ~ in '~/logs': write the whole path, or ./~/logs for a folder ~"
    assert not Path("~").exists()


@pytest.mark.parametrize("name", TIERS)
@pytest.mark.parametrize(
    ("uri", "kind", "said"),
    [
        ("s4://bucket/prefix", UnknownComponentError, "no object store for s4:// is installed"),
        ("s3://", ConfigError, "must name a bucket: s3://bucket/prefix"),
        ("file:///no/such/folder", BucketNotFoundError, "the folder of the store is missing"),
    ],
)
def test_a_bad_uri_is_named(name: str, uri: str, kind: type[StorageError], said: str) -> None:
    assert said in refused(kind, lambda: TIERS[name](uri, {}))


@pytest.mark.parametrize("name", TIERS)
def test_missing_credentials_are_named(name: str) -> None:
    text = refused(StorePermissionError, lambda: TIERS[name]("s3://bucket/prefix", {}))
    assert "no credentials were found" in text
    assert "set AWS_ACCESS_KEY_ID" in text


@pytest.mark.parametrize("name", TIERS)
def test_a_wrong_bucket_and_a_missing_right_are_named(name: str, local_s3: LocalS3) -> None:
    uri, options = local_s3.uri("prefix"), dict[str, Any](local_s3.options)
    text = refused(BucketNotFoundError, lambda: TIERS[name]("s3://nobody/prefix", options))
    assert "NoSuchBucket" in text
    assert "create the bucket" in text
    for operation in ("ListObjectsV2", "PutObject"):
        local_s3.fail(operation, status=403, code="AccessDenied", times=1000)
    try:
        text = refused(StorePermissionError, lambda: TIERS[name](uri, options))
    finally:
        local_s3.heal()
    assert "AccessDenied" in text
    assert "grant list, get, put and delete on the prefix" in text


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, library, extra = EXTRAS[name]
    monkeypatch.setitem(sys.modules, library, None)
    with open_reader("data") as reader:
        text = refused(PluginImportError, lambda: call(reader))
    assert f"install it with: pip install '{extra}'" in text
