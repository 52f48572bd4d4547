"""The Python examples of a page run unchanged, for each page without its own test file."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bloom_index
import stratalog
from stratalog import Engine, Record, open_engine
from stratalog.testing.s3 import LocalS3

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {  # other test files run the blocks of these pages
    "README.md": 1,
    "docs/recovery-from-the-bucket.md": 3,
    "docs/replication.md": 2,
    "docs/running.md": 2,
    "docs/spark.md": 6,
    "docs/tutorial.md": 3,
    "examples/replica/README.md": 1,
}
HERE = {
    "docs/archive.md": 1,
    "docs/clients.md": 3,
    "docs/gateway.md": 2,
    "docs/notebooks.md": 4,
    "docs/plugins.md": 6,  # test_plugins_page.py runs four of these blocks
    "docs/tier.md": 1,
    "examples/bloom_index/README.md": 1,
}


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def engine(tmp_path: Path, uri: str) -> Iterator[Engine]:
    """Yield an engine whose topic ``orders`` has two closed segments in the tier."""
    with open_engine(tmp_path / "data", tier=uri, plugins=[bloom_index]) as engine:
        engine.create_topic("orders", config={"index.extra": "bloom_index"})
        log = engine.log("orders", 0)
        for key in (b"customer-16", b"customer-17"):
            log.append([Record(key=key, value=b"v")])
            log.roll()
        engine.make_extra_indexes()
        engine.offload()
        yield engine


def test_every_block_of_every_page_is_run_by_a_test() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    block_counts = {str(page.relative_to(ROOT)): len(blocks(str(page.relative_to(ROOT)))) for page in pages}
    assert {page: count for page, count in block_counts.items() if count} == {**ELSEWHERE, **HERE}


def test_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("kio")
    kafka_server = request.getfixturevalue("kafka_server")
    monkeypatch.chdir(tmp_path)
    service, test = blocks("docs/gateway.md")
    exec(service, {})  # noqa: S102 - our own page
    assert (tmp_path / "data").is_dir()

    def send_order(bootstrap: str) -> None:
        assert bootstrap == kafka_server.bootstrap
        kafka_server.engine.create_topic("orders")
        kafka_server.engine.log("orders").append([Record(value=b"order 1")])

    names: dict[str, Any] = {"send_order": send_order}
    exec(test, names)  # noqa: S102 - our own page
    names["test_an_order_is_sent"](kafka_server)


def test_archive(engine: Engine, uri: str) -> None:
    pytest.importorskip("pyarrow")
    del engine
    (source,) = blocks("docs/archive.md")
    names: dict[str, object] = {"stratalog": stratalog}
    exec(source.replace("s3://archive/cluster-1", uri), names)  # noqa: S102 - our own page
    assert getattr(names["table"], "num_rows") == 2  # noqa: B009 - a pyarrow.Table, where there is one


def test_clients(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    source, serializers, event_loop = blocks("docs/clients.md")
    engine.create_topic("copies")
    exec(source, {"engine": engine})  # noqa: S102 - our own page
    assert "offset=2" in capsys.readouterr().out
    with engine.consumer(group="billing", topics=["orders"]) as consumer:
        assert consumer.lag() == {("orders", 0): 0}, "what was read is committed"
    engine.create_topic("prices")
    converted: dict[str, Any] = {"engine": engine, "json": json}
    exec(serializers, converted)  # noqa: S102 - our own page
    assert converted["amounts"] == [3]
    names: dict[str, Any] = {"engine": engine, "stratalog": stratalog, "asyncio": asyncio}
    exec(event_loop, names)  # noqa: S102 - our own page
    assert asyncio.run(names["copy"]()) == engine.log("copies").offsets().log_end == 3


def test_notebooks(engine: Engine, uri: str) -> None:
    libraries = {name: pytest.importorskip(name) for name in ("duckdb", "pandas", "polars")}
    names: dict[str, Any] = {"stratalog": stratalog, "data": uri, **libraries}
    for source in blocks("docs/notebooks.md"):
        exec(source, names)  # noqa: S102 - our own page
    assert names["table"].to_pydict() == {"key": [b"customer-17"], "offset": [1]}
    assert (names["frame"]["key"].to_list(), names["rows"]) == ([b"customer-17"], 1)
    assert names["found"].rows() == [(b"customer-17", b"v")]
    assert names["counts"] == [(b"customer-17", 1)]
    assert names["by_value"].to_dict() == {b"v": 2}
    del engine


def test_tier(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = blocks("docs/tier.md")
    exec(source.replace("s3://bucket/prefix", uri), {"stratalog": stratalog})  # noqa: S102 - our own page
    with open_engine("data", tier=uri) as engine:
        assert engine.topics()["orders"].config.local_retention_bytes == 1 << 30


def test_extra_indexes(engine: Engine) -> None:
    source = next(block for block in blocks("docs/plugins.md") if "records_with_key" in block)
    log = engine.log("orders", 0)
    exec(source, {"log": log})  # noqa: S102 - our own page
    assert [reader is not None for _, _, reader in log.extra_index("bloom_index")] == [True, True, False]
    (block,) = blocks("examples/bloom_index/README.md")
    exec(block, {"engine": engine})  # noqa: S102 - our own page
    assert [record.offset for record in log.records_with_key(b"customer-17")] == [1]


def test_a_server_that_misbehaves(local_s3: LocalS3, s3_tier: str, tmp_path: Path) -> None:
    source = next(block for block in blocks("docs/plugins.md") if "fault_proxy" in block)
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102 - our own page
    ran = names["test_an_upload_whose_reply_is_lost"]
    assert callable(ran)
    ran(local_s3, s3_tier, tmp_path)
