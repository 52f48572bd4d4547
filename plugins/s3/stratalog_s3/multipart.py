"""Multipart uploads, each with at most four parts in memory. Each upload is either completed or aborted."""

from __future__ import annotations

import io
import logging
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from stratalog.errors import StoreTimeoutError
from stratalog.spi import ByteSource
from stratalog_s3.bucket import Bucket
from stratalog_s3.checksums import Checksum
from stratalog_s3.deadline import Pending, seconds_left
from stratalog_s3.uploads import part_bytes, parts

PARTS_AT_ONCE: Final = 4
_ABORT_NS: Final = 10_000_000_000
_LOGGER: Final = logging.getLogger("stratalog.s3")


class PartBudget:
    """Limit of the memory for the parts of all uploads of a store. Thread-safe.

    If no part is in memory, a part of any size is admitted, so that uploads make progress with any limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._used_bytes = limit_bytes, 0
        self._condition = threading.Condition()

    def take(self, size_bytes: int, timeout_s: float, key: str) -> None:
        """Wait until a part of this size is admitted.

        Raises:
            StoreTimeoutError: the part was not admitted within ``timeout_s``. ``key`` is the key in the error.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._has_room(size_bytes), timeout_s):
                raise StoreTimeoutError("other uploads use all memory for parts: raise limits.upload.bytes", key)
            self._used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Release the memory of a part whose request has ended."""
        with self._condition:
            self._used_bytes -= size_bytes
            self._condition.notify_all()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes


@dataclass(frozen=True, slots=True)
class PartUploads:
    """Settings of multipart uploads.

    Attributes:
        part_bytes: size of a part. An upload with more than 10,000 such parts uses larger parts.
        parameters: parameters of the request that begins an upload.
        budget: memory limit for the parts of all uploads together.
    """

    part_bytes: int
    checksum: Checksum
    parameters: dict[str, object]
    budget: PartBudget

    def upload(self, bucket: Bucket, name: str, source: ByteSource, key: str) -> Any:
        """Upload an object in parts (a multipart upload). Return the response to the last request.

        The last request makes the object visible. If a request fails, the upload is aborted, even after the deadline,
        because the store would keep the parts and charge for them.

        Raises:
            StoreError: the source has more or fewer bytes than announced.
            StoreTimeoutError: the deadline has passed, for example while a part waited for memory.
            Others: the errors of ``Bucket.ask``.
        """
        algorithm = {"ChecksumAlgorithm": self.checksum.algorithm} if self.checksum.algorithm else {}
        upload = bucket.ask("create_multipart_upload", Key=name, **algorithm, **self.parameters)["UploadId"]
        pending: deque[tuple[dict[str, Any], Pending[Any]]] = deque()
        finished_parts: list[dict[str, Any]] = []
        try:
            size_bytes = part_bytes(source.size_bytes, self.part_bytes)
            bodies = parts(source, key, size_bytes)
            for number in range(1, -(-source.size_bytes // size_bytes) + 1):
                if len(pending) == PARTS_AT_ONCE:
                    finished_parts.append(_finish_part(*pending.popleft()))
                self.budget.take(size_bytes, seconds_left(bucket.clock, bucket.deadline_ns, key), key)
                pending.append(self._begin_part(bucket, name, upload, number, bodies, size_bytes))
            while pending:
                finished_parts.append(_finish_part(*pending.popleft()))
            return bucket.ask(
                "complete_multipart_upload", Key=name, UploadId=upload, MultipartUpload={"Parts": finished_parts}
            )
        except BaseException:
            for _, request in pending:
                request.cancel()
            _abort(bucket, name, upload)
            raise

    def _begin_part(
        self, bucket: Bucket, name: str, upload: str, number: int, bodies: Iterator[io.BytesIO], budget_bytes: int
    ) -> tuple[dict[str, Any], Pending[Any]]:
        """Read the next part, and begin its request. The part's memory is released when the request ends."""
        try:
            body = next(bodies)
            checksum = self.checksum.parameters(body.getbuffer())
            request = bucket.begin("upload_part", Key=name, UploadId=upload, PartNumber=number, Body=body, **checksum)
        except BaseException:
            self.budget.give_back(budget_bytes)
            raise
        request.call_at_end(lambda: self.budget.give_back(budget_bytes))
        return {"PartNumber": number, **(checksum if self.checksum.algorithm else {})}, request


def _finish_part(part: dict[str, Any], request: Pending[Any]) -> dict[str, Any]:
    return {**part, "ETag": request.result()["ETag"]}


def _abort(bucket: Bucket, name: str, upload: str) -> None:
    bucket_for_abort = replace(bucket, deadline_ns=bucket.clock.monotonic_ns() + _ABORT_NS)
    try:
        bucket_for_abort.ask("abort_multipart_upload", Key=name, UploadId=upload)
    except Exception as error:  # noqa: BLE001 - the error of the upload itself is the one to raise
        _LOGGER.warning("an upload in parts could not be aborted key=%s error=%s", name, type(error).__name__)
