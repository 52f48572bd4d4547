"""Object stores: local folders, and over fsspec S3 and compatible services, memory, and other clouds.

Options of the tier (``tier_options``) are passed to the fsspec file system; a local folder has no options. Options for
S3 are, for example, ``key``, ``secret``, ``token``, ``client_kwargs``, ``config_kwargs`` and ``s3_additional_kwargs``.
For S3, AWS's environment variables and configuration files apply, too. The option ``credentials`` is a function that
returns a mapping with ``key``, ``secret``, and optionally ``token`` and ``expires_ms`` (ms since 1970). The store calls
the function again before the credentials expire.

``[plugins.s3]`` contains the settings of the service (``endpoint_url``, ``region``, ``addressing``, ``allow_http``) and
of uploads. If a tier option has the name of a setting, it overrides the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

from stratalog.spi import ObjectStore, OpenContext, Provider, hookimpl
from stratalog_s3.settings import S3Section, TransportSection

GENERIC_SCHEMES: Final = frozenset({
    "adl", "oci", "oss", "hdfs", "webhdfs", "sftp", "ssh", "smb",
})  # fmt: skip


def _opener(module: str, function: str) -> Callable[[OpenContext], ObjectStore]:
    """Return a function that opens a store with ``function`` in ``module``, and imports the module only then.

    The import of asyncio and fsspec takes a quarter of a second.
    """

    def open_store(context: OpenContext) -> ObjectStore:
        store: ObjectStore = getattr(import_module(f"stratalog_s3.{module}"), function)(context)
        return store

    return open_store


@hookimpl
def stratalog_object_stores() -> Iterable[Provider[ObjectStore]]:
    """Return the providers of the stores. fsspec is imported when the first store that needs fsspec is opened."""
    return (
        Provider(
            name="s3", open=_opener("s3", "open_s3"), schemes=frozenset({"s3", "s3a"}), engine_section=S3Section,
            capabilities=("atomic create", "batch delete", "checksums"),
        ),
        Provider(
            name="file", open=_opener("file", "open_file"), schemes=frozenset({"file"}),
            capabilities=("atomic create",),
        ),
        Provider(
            name="memory", open=_opener("conditional", "open_memory"), schemes=frozenset({"memory"}),
            capabilities=("atomic create",),
        ),
        Provider(
            name="gcs", open=_opener("conditional", "open_conditional"), schemes=frozenset({"gs", "gcs"}),
            engine_section=TransportSection, capabilities=("atomic create", "needs gcsfs"),
        ),
        Provider(
            name="abfs", open=_opener("conditional", "open_conditional"), schemes=frozenset({"abfs", "abfss", "az"}),
            engine_section=TransportSection, capabilities=("atomic create", "needs adlfs"),
        ),
        Provider(
            name="fsspec", open=_opener("store", "open_generic"), schemes=GENERIC_SCHEMES,
            engine_section=TransportSection, capabilities=("single writer only",),
        ),
    )  # fmt: skip
