"""More logs than the number of file descriptors that the process may open."""

from __future__ import annotations

from pathlib import Path

from stratalog import Record, open_engine
from stratalog.env import Env
from stratalog.testing.faults import FaultyVfs

LOGS, OPEN_FILES = 60, 8
CONFIG = {"limits.open.files": OPEN_FILES}


def test_logs_share_few_descriptors(tmp_path: Path) -> None:
    files, most_open = FaultyVfs(), [0]

    def rule(operation: str, path: str) -> None:
        del operation, path
        most_open[0] = max(most_open[0], len(files.open_paths))

    for start in range(2):  # the first engine creates the logs, the second one opens them
        with open_engine(tmp_path, config=CONFIG, env=Env(files=files)) as engine:
            files.rule = rule
            if not start:
                engine.create_topic("t", partitions=LOGS)
            for partition in range(LOGS):
                engine.log("t", partition).append([Record(value=b"%d" % partition)])
            engine.flush()
            for partition in range(LOGS):
                values = [record.value for record in engine.log("t", partition).records()]
                assert values == [b"%d" % partition] * (start + 1)
    assert most_open[0] <= OPEN_FILES + 4, "the lock, and what is open for a moment outside the pool"
    assert files.open_paths == []
