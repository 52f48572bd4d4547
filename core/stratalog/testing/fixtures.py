"""Pytest fixtures, which pytest finds through the ``pytest11`` entry point of stratalog.

The import of this module is cheap: a fixture imports its dependencies at its first use.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

_MEMORY: Final = "/dev/shm"  # noqa: S108 - each test makes a new folder in it
_ROOM_BYTES: Final = 1 << 30  # space that must be free in /dev/shm; containers often have only 64 MiB

if TYPE_CHECKING:
    from stratalog.spi.providers import Provider
    from stratalog.testing.kafka_server import KafkaServer
    from stratalog.testing.s3 import LocalS3


@pytest.fixture(scope="session")
def local_s3() -> Iterator[LocalS3]:
    """Yield an S3 server on loopback with one bucket. All tests of the session share the server."""
    from stratalog.testing.s3 import local_s3 as serve  # noqa: PLC0415 - needs moto, which is optional

    with serve() as server:
        yield server


@pytest.fixture
def s3_tier(local_s3: LocalS3) -> Iterator[str]:
    """Yield the URI of a prefix that no other test uses. ``local_s3.options`` are the options of the store.

    Before the test, failures that an earlier test planned are removed. After the test, the objects under the prefix are
    removed.
    """
    from stratalog.testing.s3 import remove_objects  # noqa: PLC0415 - imported at the first use

    local_s3.heal()
    prefix = f"test-{uuid.uuid4().hex}"
    yield local_s3.uri(prefix)
    remove_objects(local_s3.bucket, f"{prefix}/")


@pytest.fixture
def open_component() -> Iterator[Callable[..., Any]]:  # Any: a component of any kind
    """Yield a function that opens a component: ``open_component(provider, {"acme.bytes": 5}, location=...)``.

    The mapping has settings of the provider's ``engine_section`` by name. Keyword arguments are passed to
    ``open_context``. Stores are closed after the test.
    """
    from stratalog.env.closing import Closeable  # noqa: PLC0415 - imported at the first use
    from stratalog.testing.contexts import open_context  # noqa: PLC0415 - imported at the first use

    with contextlib.ExitStack() as stack:

        def opened(provider: Provider[Any], settings: Mapping[str, object] | None = None, **context: Any) -> Any:
            kind = provider.engine_section
            assert kind is not None or not settings, f"the provider {provider.name} has no settings"
            section = None if kind is None else kind.from_mapping(settings or {}, "the test")
            component = provider.open(open_context(section, **context))
            return stack.enter_context(component) if isinstance(component, Closeable) else component

        yield opened


@pytest.fixture
def kafka_server(tmp_path: Path) -> Iterator[KafkaServer]:
    """Yield a server for Kafka clients on loopback, without topics. The attribute ``bootstrap`` is its address.

    Its files are in ``/dev/shm`` if 1 GiB is free there, otherwise in ``tmp_path``.
    """
    from stratalog.testing.kafka_server import kafka_server as serve  # noqa: PLC0415 - imported at the first use

    with _folder_in_memory(tmp_path) as folder, serve(folder) as server:
        yield server


@contextlib.contextmanager
def _folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """Yield an empty folder in ``/dev/shm`` if 1 GiB is free there, else in ``otherwise``. Remove it at the end."""
    try:
        has_room = shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    except OSError:
        has_room = False
    with tempfile.TemporaryDirectory(prefix="stratalog-", dir=_MEMORY if has_room else otherwise) as folder:
        yield Path(folder)
