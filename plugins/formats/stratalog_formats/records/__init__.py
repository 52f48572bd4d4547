"""Kafka's record formats: messages of magic 0 and 1, record batches of magic 2."""

from __future__ import annotations

from stratalog.spi import OpenContext, Provider, RecordFormat
from stratalog_formats.kernels import EXTENSIONS
from stratalog_formats.openers import opener_of


def _message_arguments(context: OpenContext) -> tuple[object, ...]:
    return context.codecs, context.limits.decompressed_bytes


# One entry for each format, not one line for each argument:
# fmt: off
PROVIDERS: tuple[Provider[RecordFormat], ...] = (
    Provider(name="v0", open=opener_of("records.message_versions", "MessageFormatV0", _message_arguments),
        extensions=EXTENSIONS),
    Provider(name="v1", open=opener_of("records.message_versions", "MessageFormatV1", _message_arguments),
        extensions=EXTENSIONS),
    Provider(name="v2", open=opener_of("records.batches", "BatchFormat", lambda context: (context.codecs,)),
        extensions=EXTENSIONS),
)
# fmt: on
