"""Requests to one bucket for one operation, with a common deadline."""

from __future__ import annotations

import inspect
import io
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stratalog.errors import StoreError
from stratalog.spi import Clock
from stratalog_s3.deadline import Pending, run, seconds_left
from stratalog_s3.failures import is_expired, is_past_the_end

_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Access to a bucket for the requests of one operation, such as an upload.

    Attributes:
        filesystem: connected file system of s3fs, with its own event loop.
        deadline_ns: deadline of all requests together (monotonic).
        sent: number of requests, by botocore's method name; changed on the event loop only.
        renew: function that replaces the expired credentials of a client. Returns True if a retry can succeed.
    """

    filesystem: Any
    name: str
    clock: Clock
    deadline_ns: int
    sent: Counter[str]
    renew: Callable[[Any], Awaitable[bool]]

    def ask(self, method: str, **parameters: object) -> Any:
        """Send one request, and return the response. ``method`` is botocore's name, such as ``put_object``.

        Raises:
            StoreTimeoutError: the deadline had passed before the request. Nothing was sent.
            TimeoutError: no response arrived before the deadline.
            Others: the errors of s3fs.
        """
        return self.begin(method, **parameters).result()

    def begin(self, method: str, **parameters: object) -> Pending[Any]:
        """Begin a request like ``ask``, and return the pending call. Raises the StoreTimeoutError of ``ask``."""
        timeout_s = seconds_left(self.clock, self.deadline_ns, str(parameters.get("Key", "")))
        return Pending(self.filesystem.loop, lambda: self._call(method, parameters), timeout_s)

    def get(self, name: str, start: int | None, end: int | None) -> bytes:
        """Return the bytes [start, end) of an object. None means the start or the end of the object.

        The result is empty if ``start`` is at or after the end of the object. The deadline includes the transfer.

        Raises:
            StoreError: the store sent another range, or too few bytes.
            Others: the errors of ``ask``.
        """
        return run(
            self.filesystem.loop, lambda: self._get(name, start, end), seconds_left(self.clock, self.deadline_ns, name)
        )

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        """Send one request. If the store refuses expired credentials, renew the credentials and retry once."""
        client = self.filesystem.s3
        try:
            return await self._once(method, parameters)
        except Exception as error:
            if not is_expired(error) or not await self.renew(client):
                raise
        return await self._once(method, parameters)

    def _once(self, method: str, parameters: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        self.sent[method] += 1
        body = parameters.get("Body")
        if isinstance(body, io.BytesIO):
            body.seek(0)  # the refused request may have read part of the body
        call: Coroutine[Any, Any, Any] = self.filesystem._call_s3(  # noqa: SLF001 - s3fs has no public async one
            method, Bucket=self.name, **parameters
        )
        return call

    async def _get(self, name: str, start: int | None, end: int | None) -> bytes:
        first = start or 0
        parameters: dict[str, Any] = {"Key": name}
        if start is not None or end is not None:
            parameters["Range"] = f"bytes={first}-{'' if end is None else end - 1}"
        try:
            answer = await self._call("get_object", parameters)
        except Exception as error:
            if is_past_the_end(error):
                return b""
            raise
        body = answer["Body"]
        try:
            size_bytes = int(answer["ContentLength"])
            served = _parse_range(answer.get("ContentRange"), size_bytes)
            if (
                served.start != first
                or served.end - first != size_bytes
                or served.end != min(end or served.object_bytes, served.object_bytes)
            ):
                raise StoreError(f"bytes [{first}, {end}) were requested, but the store sent {served}", name)
            data: bytes = await body.read()
        finally:  # closes a refused body unread, because a whole object may be large
            closing = body.close()
            if inspect.isawaitable(closing):  # with httpx; ``async with`` does not work in aiobotocore 2
                await closing
        if len(data) != size_bytes:
            raise StoreError(f"the store announced {size_bytes} bytes, but sent {len(data)}", name)
        return data


class _ServedRange(NamedTuple):
    """Range in the headers of a response: bytes [start, end) of an object of ``object_bytes`` bytes."""

    start: int
    end: int
    object_bytes: int


def _parse_range(content_range: str | None, size_bytes: int) -> _ServedRange:
    """Parse the header ``Content-Range`` of a response. All fields are -1 if the header is malformed.

    A response without the header contains the whole object of ``size_bytes``.
    """
    if content_range is None:
        return _ServedRange(0, size_bytes, size_bytes)
    match = _CONTENT_RANGE.match(content_range)
    return _ServedRange(int(match[1]), int(match[2]) + 1, int(match[3])) if match else _ServedRange(-1, -1, -1)
