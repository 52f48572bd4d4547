"""Offload of closed segments to S3, compared with s3fs's upload of the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import s3fs

from harness import Bound, Case, CpuBound, PreparedSide, WrongOutcomeError
from log_parts.pages import warm_memory
from stratalog import Engine, open_reader
from tier_parts.logs import REMOTE, LocalLog, Store, engine_on, fetch_all
from tier_parts.server import LoopbackS3

OFFLOAD: Final = "tier/offload/s3"
_OURS: Final = "stratalog"
_ALONE: Final = "s3fs put_file alone"
_TITLE: Final = "offload"
_SPEED: Final = 0.8
_CPU: Final = 1.3
_MEMORY_BYTES: Final = 256 << 20  # more than any side allocates


def offload_bounds() -> list[Bound | CpuBound]:
    """Return the bounds: the required speed and processor time of stratalog, relative to s3fs."""
    return [
        Bound(_TITLE, OFFLOAD, _OURS, _ALONE, _SPEED),
        CpuBound(_TITLE, OFFLOAD, _OURS, _ALONE, _CPU),
    ]


def offload_case(local_log: LocalLog, scratch: Path, server: LoopbackS3) -> Case:
    """Return the case in which a call offloads all closed segments. The server deletes them before the next sample."""
    numbers = count()

    @contextmanager
    def engines(calls: int) -> Iterator[Callable[[], object]]:
        with ExitStack() as stack:
            stack.callback(server.forget)
            open_engines: list[Engine] = []
            for _ in range(calls):
                number = next(numbers)
                folder = stack.enter_context(local_log.copy(scratch / f"copy-{number}"))
                store = Store(server.uri(f"offload-{number}"), server.options)
                open_engines.append(stack.enter_context(engine_on(folder, store)))
            warm_memory(_MEMORY_BYTES)
            yield lambda: open_engines.pop().offload()

    @contextmanager
    def uploads(_calls: int) -> Iterator[Callable[[], object]]:
        filesystem = s3fs.S3FileSystem(**server.options, skip_instance_cache=True, use_listings_cache=False)
        filesystem.exists(server.uri("nothing"))  # opens the connection before the measurement
        warm_memory(_MEMORY_BYTES)
        try:
            yield lambda: _put_all(filesystem, local_log, server.uri(f"alone-{next(numbers)}"))
        finally:
            server.forget()

    def check_ours() -> None:
        with local_log.copy(scratch / "checked") as folder:
            store = Store(server.uri("checked"), server.options)
            with engine_on(folder, store) as engine:
                engine.offload()
            with open_reader(store.uri, tier_options=dict(store.options)) as reader:
                read_bytes = fetch_all(reader.log(REMOTE, 0))
        server.forget()
        if read_bytes != local_log.size_bytes:
            raise WrongOutcomeError(f"{_OURS}: {read_bytes} bytes of {local_log.size_bytes} are in the tier")

    def check_alone() -> None:
        with uploads(1) as call:
            call()

    sides = [PreparedSide(_OURS, engines, check_ours), PreparedSide(_ALONE, uploads, check_alone)]
    return Case(OFFLOAD, f"{_TITLE} to S3; {local_log.size_bytes >> 20} MiB", sides, 0, local_log.size_bytes)


def _put_all(filesystem: s3fs.S3FileSystem, local_log: LocalLog, uri: str) -> None:
    for file in local_log.files:
        filesystem.put_file(str(file), f"{uri}/{file.name}")
