"""Kafka's own Cleaner, in one process that runs many compaction rounds."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from stratalog.config.topic import TopicConfig
from stratalog.env.closing import Closeable


class KafkaCleaner(Closeable):
    """A process that cleans log folders on request, one at a time.

    Args:
        command: command line that runs ``KafkaCleaner.java``.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def clean(self, folder: Path, now_ms: int, dirty_start: int, memory_bytes: int, config: TopicConfig) -> list[int]:
        """Run one round. Return the end offset of the round, bytes read, records read, and records kept."""
        return self._asked(folder, now_ms, dirty_start, memory_bytes, config)

    def recover(self, folder: Path, now_ms: int, config: TopicConfig) -> int:
        """Open a log as after a crash, and close it. Return its log end offset."""
        return self._asked(folder, now_ms, 0, 0, config)[0]

    def _asked(self, folder: Path, now_ms: int, dirty_start: int, memory_bytes: int, config: TopicConfig) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        config_values = config.to_mapping()
        settings = [f"{name}={config_values[name]}" for name in ("index.interval.bytes", "delete.retention.ms")]
        # smaller than the broker's minimum if a test needs it
        settings.append(f"internal.segment.bytes={config.segment_bytes}")
        print(folder, now_ms, dirty_start, memory_bytes, *settings, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer[:1].isdigit(), answer
        return [int(word) for word in answer.split()]
