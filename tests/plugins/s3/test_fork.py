"""A child process after a fork does not use its parent's connections, and does not wait for its parent's threads."""

import sys

import pytest

import stratalog
from forked import in_child, is_refusal
from stratalog import Record
from stratalog.testing.s3 import LocalS3

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    # Python 3.12 warns about a fork of a process with threads.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_a_child_is_refused_the_reader_of_its_parent_and_reads_with_its_own(
    local_s3: LocalS3, s3_tier: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    with stratalog.open_engine(folder, tier=s3_tier, tier_options=local_s3.options) as engine:
        engine.create_topic("t", config={"remote.storage.enable": "true"})
        engine.log("t", 0).append([Record(value=b"v")])
        engine.log("t", 0).roll()
        engine.offload()

        def offload() -> None:
            engine.offload()

        with stratalog.open_reader(s3_tier, tier_options=local_s3.options) as reader:
            log = reader.log("t", 0)
            assert len(list(log.records())) == 1

            def read() -> None:
                with stratalog.open_reader(s3_tier, tier_options=local_s3.options) as child_reader:
                    assert [record.value for record in child_reader.log("t", 0).records()] == [b"v"]

            reader_error, engine_error, own_error = in_child(lambda: list(log.records()), offload, read)
            assert is_refusal(reader_error)
            assert is_refusal(engine_error)
            assert not own_error
            assert len(list(log.records())) == 1
