"""Kills writers at random points, many times, and checks that no acknowledged record is lost.

Usage: kill_loop.py FOLDER CYCLES SEED. The exit code is 0 if no record is lost; otherwise the program prints what is
lost. Each writer is a fork of this process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Final

from forked import fork_with_pipe
from stratalog import Record, open_engine

CONFIG: Final = {"segment.bytes": 4000, "index.interval.bytes": 0, "file.delete.delay.ms": 0}
MOST_APPENDS: Final = 40


def write_for_ever(folder: str, told: int) -> None:
    """Append numbers, and write each acknowledged offset to the descriptor ``told``. Never return."""
    with open_engine(folder) as engine:
        log = engine.log("t", 0)
        while True:
            offset = log.append([Record(value=b"%d" % log.offsets().log_end)]).last_offset
            os.write(told, offset.to_bytes(8, "big"))


def kill_one(folder: str, appends: int) -> int:
    """Run a writer, and kill it after this many appends; 0 kills it while it opens.

    Return the last offset that it acknowledged, or -1.
    """
    child, reading = fork_with_pipe(lambda writing: write_for_ever(folder, writing))
    last = -1
    for _ in range(appends):
        last = int.from_bytes(os.read(reading, 8), "big")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while late_message := os.read(reading, 8):
        last = int.from_bytes(late_message, "big")
    os.close(reading)
    return last


def main(folder: str, cycles: int, seed: int) -> str:
    """Return a description of the lost records, "" if there are none."""
    chance, acknowledged = random.Random(seed), -1  # noqa: S311 - a run that can be repeated
    with open_engine(folder) as engine:
        engine.create_topic("t", config=CONFIG)
    for cycle in range(cycles):
        acknowledged = max(acknowledged, kill_one(folder, chance.randrange(MOST_APPENDS)))
        if cycle % 10 and cycle < cycles - 1:
            continue  # the next writer recovers what this one left
        with open_engine(folder) as engine:
            values = [int(record.value or b"") for record in engine.log("t", 0).records()]
            if values != list(range(len(values))) or len(values) <= acknowledged:
                return f"seed {seed}, cycle {cycle}: told {acknowledged}, there are {len(values)}: {values[-5:]}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) or 0)
