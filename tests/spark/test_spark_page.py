"""The examples of the page about Spark run unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import stratalog_spark
from stratalog import Record, open_engine

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Return folders of this test for the URIs and paths on the page. The tier has twenty records of two keys."""
    places = {name: (tmp_path / name).as_uri() for name in ("bucket", "other", "events")}
    for name in places:
        (tmp_path / name).mkdir()
    with open_engine(tmp_path / "data", tier=places["bucket"]) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(key=b"k%d" % (number % 2), value=b'{"n":1}') for number in range(20)])
        engine.log("orders", 0).roll()
        engine.offload()
    return {
        "s3://bucket/prefix": places["bucket"],
        "s3://other/prefix": places["other"],
        "s3://lake/events": places["events"],
        "/checkpoints/shout": str(tmp_path / "checkpoint"),
    }


def run(source: str, places: dict[str, str], names: dict[str, Any]) -> dict[str, Any]:
    for page_place, local_place in places.items():
        source = source.replace(page_place, local_place)
    exec(source, names)  # noqa: S102 - our own page
    return names


def test_the_examples_run(
    spark: Any, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stratalog_spark, "local_session", lambda _: spark)
    reading, in_arrow, streaming, watching, jobs, _ = BLOCKS
    names = run(reading, places, {})
    assert names["orders"].count() == 20
    run(in_arrow, places, names)
    sums = {bytes(row.key): row["sum(bytes)"] for row in names["frame"].groupBy("key").sum("bytes").collect()}
    assert sums == {b"k0": 70, b"k1": 70}
    assert "|" in capfd.readouterr().out, "both show a table"
    query = run(streaming, places, names)["query"]
    try:
        query.processAllAvailable()
        assert query.exception() is None
        run(watching, places, names)
        assert "Stratalog[Subscribe[orders] of file:" in capfd.readouterr().out
    finally:
        query.stop()
    run(jobs, places, names)
    assert names["report"].ok
    assert [partition.records for partition in names["partitions"]] == [20]
    assert list(Path(places["s3://lake/events"].removeprefix("file://")).rglob("*.parquet"))


@pytest.mark.usefixtures("has_lakes")
def test_the_example_of_a_lake_runs(spark: Any, places: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    local_places = {"s3://lake/tables": (tmp_path / "tables").as_uri(), "/catalog/lake.db": str(tmp_path / "lake.db")}
    local_places["/checkpoints/orders"] = str(tmp_path / "checkpoint")
    names = run(BLOCKS[-1], {**places, **local_places}, {"spark": spark})
    table = names["orders"].open_table()
    assert (table.number, table.ends([0])) == (1, {0: 20})
    assert table.columns.names[-1] == "n"
