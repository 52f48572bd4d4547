"""Uploads in parts: a few at a time in memory, completed as a whole or aborted."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import Any, Final

from stratalog.spi import ByteSource
from stratalog_s3.bucket import Bucket, crc32_of
from stratalog_s3.deadline import Pending
from stratalog_s3.uploads import part_bytes, parts

PARTS_AT_ONCE: Final = 4
_ABORT_NS: Final = 10_000_000_000
_LOGGER: Final = logging.getLogger("stratalog.s3")


def upload_parts(bucket: Bucket, name: str, source: ByteSource, key: str) -> Any:
    """Upload a large object; the store's answer to the last request.

    Nothing is visible before that request. If anything fails the upload is aborted, after the deadline too, or its
    parts would be stored, and paid for, for ever.
    """
    upload = bucket.ask("create_multipart_upload", Key=name, ChecksumAlgorithm="CRC32")["UploadId"]
    pending: deque[tuple[dict[str, Any], Pending[Any]]] = deque()
    done: list[dict[str, Any]] = []
    try:
        for number, body in enumerate(parts(source, key, part_bytes(source.size_bytes)), 1):
            if len(pending) == PARTS_AT_ONCE:
                done.append(_finished(*pending.popleft()))
            part = {"PartNumber": number, "ChecksumCRC32": crc32_of(body)}
            pending.append((part, bucket.begin("upload_part", Key=name, UploadId=upload, Body=body, **part)))
        while pending:
            done.append(_finished(*pending.popleft()))
        return bucket.ask("complete_multipart_upload", Key=name, UploadId=upload, MultipartUpload={"Parts": done})
    except BaseException:
        for _, request in pending:
            request.cancel()
        _abort(bucket, name, upload)
        raise


def _finished(part: dict[str, Any], request: Pending[Any]) -> dict[str, Any]:
    return {**part, "ETag": request.result()["ETag"]}


def _abort(bucket: Bucket, name: str, upload: str) -> None:
    late = replace(bucket, deadline_ns=bucket.clock.monotonic_ns() + _ABORT_NS)
    try:
        late.ask("abort_multipart_upload", Key=name, UploadId=upload)
    except Exception as error:  # noqa: BLE001 - what made the upload fail is what counts
        _LOGGER.warning("an upload in parts could not be aborted key=%s error=%s", name, type(error).__name__)
