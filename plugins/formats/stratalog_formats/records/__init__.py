"""Kafka's record formats: messages of magic 0 and 1, record batches of magic 2."""

from __future__ import annotations

from stratalog.spi import OpenContext, Provider, RecordFormat
from stratalog_formats.kernels import EXTENSIONS


def _open_v0(context: OpenContext) -> RecordFormat:
    from stratalog_formats.records.messages_v0 import MessageFormatV0  # noqa: PLC0415 - a provider imports when it opens

    return MessageFormatV0(context.codecs, limit_bytes=context.limits.decompressed_bytes)


def _open_v1(context: OpenContext) -> RecordFormat:
    from stratalog_formats.records.messages_v1 import MessageFormatV1  # noqa: PLC0415 - the same

    return MessageFormatV1(context.codecs, limit_bytes=context.limits.decompressed_bytes)


def _open_v2(context: OpenContext) -> RecordFormat:
    from stratalog_formats.records.batches import BatchFormat  # noqa: PLC0415 - the same

    return BatchFormat(context.codecs)


PROVIDERS: tuple[Provider[RecordFormat], ...] = (
    Provider(name="v0", open=_open_v0, extensions=EXTENSIONS),
    Provider(name="v1", open=_open_v1, extensions=EXTENSIONS),
    Provider(name="v2", open=_open_v2, extensions=EXTENSIONS),
)
