"""Short ``repr`` texts of engines and producers, for shells and log messages."""

from __future__ import annotations

from pathlib import Path

from stratalog import open_engine


def test_an_engine_and_its_producers_have_short_texts(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", partitions=3)
        assert repr(engine) == f"Engine({str(tmp_path)!r}, logs=3)"
        with engine.producer() as producer:
            assert repr(producer) == "Producer(transactional_id=None, partitions=0)"
            producer.send("t", value=b"v")
            assert repr(producer) == "Producer(transactional_id=None, partitions=3)"
        with engine.producer(transactional_id="billing") as producer:
            assert "transactional_id='billing'" in repr(producer)
