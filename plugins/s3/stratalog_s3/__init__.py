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

from collections.abc import Iterable
from typing import Final

from stratalog.spi import ObjectStore, OpenContext, Provider, hookimpl
from stratalog_s3.settings import S3Section, TransportSection

GENERIC_SCHEMES: Final = frozenset({
    "adl", "oci", "oss", "hdfs", "webhdfs", "sftp", "ssh", "smb",
})  # fmt: skip


@hookimpl
def stratalog_object_stores() -> Iterable[Provider[ObjectStore]]:
    """Return the providers of the stores. fsspec is imported when the first store that needs fsspec is opened."""
    return (
        Provider(
            name="s3",
            open=_open_s3,
            schemes=frozenset({"s3", "s3a"}),
            engine_section=S3Section,
            capabilities=("atomic create", "batch delete", "checksums"),
        ),
        Provider(name="file", open=_open_file, schemes=frozenset({"file"}), capabilities=("atomic create",)),
        Provider(name="memory", open=_open_memory, schemes=frozenset({"memory"}), capabilities=("atomic create",)),
        Provider(
            name="gcs",
            open=_open_conditional,
            schemes=frozenset({"gs", "gcs"}),
            engine_section=TransportSection,
            capabilities=("atomic create", "needs gcsfs"),
        ),
        Provider(
            name="abfs",
            open=_open_conditional,
            schemes=frozenset({"abfs", "abfss", "az"}),
            engine_section=TransportSection,
            capabilities=("atomic create", "needs adlfs"),
        ),
        Provider(
            name="fsspec",
            open=_open_generic,
            schemes=GENERIC_SCHEMES,
            engine_section=TransportSection,
            capabilities=("single writer only",),
        ),
    )


def _open_s3(context: OpenContext) -> ObjectStore:
    from stratalog_s3.s3 import open_s3  # noqa: PLC0415 - asyncio and fsspec take a quarter of a second

    return open_s3(context)


def _open_file(context: OpenContext) -> ObjectStore:
    from stratalog_s3.file import open_file  # noqa: PLC0415 - only if the store is used

    return open_file(context)


def _open_memory(context: OpenContext) -> ObjectStore:
    from stratalog_s3.memory import open_memory  # noqa: PLC0415 - imports fsspec

    return open_memory(context)


def _open_conditional(context: OpenContext) -> ObjectStore:
    from stratalog_s3.conditional import open_conditional  # noqa: PLC0415 - imports fsspec

    return open_conditional(context)


def _open_generic(context: OpenContext) -> ObjectStore:
    from stratalog_s3.store import open_generic  # noqa: PLC0415 - imports fsspec

    return open_generic(context)
