"""Requests to one bucket for one operation, with a common deadline."""

from __future__ import annotations

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
    """A bucket through a connected s3fs file system (Any: s3fs has no types), for the requests of one operation.

    Attributes:
        filesystem: the file system, with its own event loop.
        name: name of the bucket.
        clock: clock of the deadline.
        deadline_ns: deadline of all requests together.
        sent: number of requests by botocore's method name; changed on the event loop only.
        renew: called when the credentials of a client have expired; returns True if a retry with new credentials can
            succeed.
    """

    filesystem: Any
    name: str
    clock: Clock
    deadline_ns: int
    sent: Counter[str]
    renew: Callable[[Any], Awaitable[bool]]

    def ask(self, method: str, **parameters: object) -> Any:
        """Send one request, named as botocore names it, and return the answer.

        Raises:
            StoreTimeoutError: the deadline had passed before; nothing was sent.
            TimeoutError: there was no answer before the deadline.
            Other errors are those of s3fs.
        """
        return self.begin(method, **parameters).result()

    def begin(self, method: str, **parameters: object) -> Pending[Any]:
        """Send a request without waiting for the answer, and return the pending call.

        Raises:
            StoreTimeoutError: the deadline had passed before; nothing was sent.
        """
        left_s = seconds_left(self.clock, self.deadline_ns, str(parameters.get("Key", "")))
        return Pending(self.filesystem.loop, lambda: self._call(method, parameters), left_s)

    def get(self, name: str, start: int | None, end: int | None) -> bytes:
        """Return the bytes [start, end) of an object; None is its start or end.

        The result is empty if the object ends before ``start``. The deadline includes the transfer of the body.

        Raises:
            StoreError: the store answered with another range, or sent too few bytes.
            Other errors are those of ``ask``.
        """
        return run(
            self.filesystem.loop, lambda: self._get(name, start, end), seconds_left(self.clock, self.deadline_ns, name)
        )

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        """Send one request. If it is refused because the credentials have expired, renew them and retry once."""
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
            body.seek(0)  # a refused request has read part of the body; a retry must send all of it
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
        async with answer["Body"] as body:  # a refused body is closed unread: a whole object may be large
            size_bytes = int(answer["ContentLength"])
            served = _served(answer.get("ContentRange"), size_bytes)
            if (
                served.start != first
                or served.end - first != size_bytes
                or served.end != min(end or served.of, served.of)
            ):
                raise StoreError(f"asked for bytes [{first}, {end}), the store sent {served}", name)
            data: bytes = await body.read()
        if len(data) != size_bytes:
            raise StoreError(f"the store announced {size_bytes} bytes, but sent {len(data)}", name)
        return data


class _Served(NamedTuple):
    """Content of a reply according to its headers: bytes [start, end) of an object of ``of`` bytes."""

    start: int
    end: int
    of: int


def _served(content_range: str | None, size_bytes: int) -> _Served:
    """Parse the ``Content-Range`` of a reply. A reply without this header contains the whole object of ``size_bytes``.

    All fields are -1 if the header is malformed.
    """
    if content_range is None:
        return _Served(0, size_bytes, size_bytes)
    found = _CONTENT_RANGE.match(content_range)
    return _Served(int(found[1]), int(found[2]) + 1, int(found[3])) if found else _Served(-1, -1, -1)
