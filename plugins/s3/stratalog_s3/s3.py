"""S3 and what speaks its protocol: each call is one request, made through s3fs, inside our own deadline."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from stratalog.spi import (
    Buffer,
    ByteSource,
    Capability,
    ConfigError,
    Created,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStore,
    OpenContext,
    PluginImportError,
    StoreError,
)
from stratalog_s3.bucket import Bucket, crc32_of
from stratalog_s3.create import create_capability
from stratalog_s3.deadline import run, seconds_left
from stratalog_s3.failures import Reply, typed_code
from stratalog_s3.location import check_key, check_prefix, parse_location
from stratalog_s3.multipart import upload_parts
from stratalog_s3.options import check_endpoint, filesystem_options, quieten_botocore
from stratalog_s3.secret import SecretOptions
from stratalog_s3.store import StoreBase
from stratalog_s3.uploads import PART_BYTES, whole

PAGE_KEYS: Final = 1000  # S3's bound, for listing and for deleting
_CLOSE_S: Final = 5.0
_LOGGER: Final = logging.getLogger("stratalog.s3")


class S3Store(StoreBase):
    """A bucket, or a prefix of it. Connects at the first call, once a process."""

    _connected: Any = None  # the file system whose client has been checked; checking twice in a race does no harm

    @property
    def capabilities(self) -> Capability:
        """All; the core probes CREATE, which some servers that speak S3's protocol accept and ignore."""
        return (
            create_capability(self._location.scheme)
            | Capability.LIST_AFTER
            | Capability.BATCH_DELETE
            | Capability.CHECKSUM
        )

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Upload in one request up to 16 MiB, in parts of 16 MiB above; a failed upload in parts is aborted.

        A handful of parts are in memory at a time, whatever the object's size. Each request carries a CRC-32 that the store checks.
        """
        name = self._writable(key)
        with self._errors(key):
            bucket = self._bucket(deadline_ns)
            if source.size_bytes <= PART_BYTES:
                body = whole(source, key)
                answer = bucket.ask("put_object", Key=name, Body=body, ChecksumCRC32=crc32_of(body))
            else:
                answer = upload_parts(bucket, name, source, key)
        return ObjectInfo(key, source.size_bytes, _etag(answer))

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write only if the key is free, by ``If-None-Match: *``.

        One request as far as we can tell: on a kept connection that the server has closed the HTTP client below sends
        it again, so that EXISTS may speak of our own object. Whoever must know reads it.
        """
        name, body = self._writable(key), bytes(data)
        with self._errors(key):
            bucket = self._bucket(deadline_ns)  # what fails here has sent nothing
        with self._create_errors(key) as outcome:
            bucket.ask("put_object", Key=name, Body=body, ChecksumCRC32=crc32_of(body), IfNoneMatch="*")
        return outcome[0]

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Bytes [start, end) of an object, in one GET; an empty range costs none.

        Raises:
            StoreError: the store answered with another range than the one asked for.
        """
        name = self._location.name(check_key(key))
        if end is not None and end <= (start or 0):
            return b""
        with self._errors(key):
            return self._bucket(deadline_ns).get(name, start, end)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """One page, in one request a thousand keys."""
        query = {"Prefix": self._location.name(check_prefix(prefix))}
        if after:
            query["StartAfter"] = self._location.name(after)
        found: list[ObjectInfo] = []
        with self._errors(prefix):
            bucket = self._bucket(deadline_ns)
            while len(found) < limit:
                answer = bucket.ask("list_objects_v2", MaxKeys=min(limit - len(found), PAGE_KEYS), **query)
                infos = [self._object_info(item) for item in answer.get("Contents", ())]
                found += [info for info in infos if info.key]  # without the marker that consoles make for a "folder"
                if not answer.get("IsTruncated"):
                    break
                query = {"Prefix": query["Prefix"], "ContinuationToken": answer["NextContinuationToken"]}
        return found

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete, a thousand keys a request."""
        self._refuse_write()
        names = {self._location.name(check_key(key)): key for key in keys}
        failed: dict[str, StoreError] = {}
        with self._errors(next(iter(keys), "")):
            bucket = self._bucket(deadline_ns)
            pages = list(names)
            for first in range(0, len(pages), PAGE_KEYS):
                page = pages[first : first + PAGE_KEYS]
                wanted = {"Objects": [{"Key": name} for name in page], "Quiet": True}
                answer = bucket.ask("delete_objects", Delete=wanted)
                failed.update(self._refused(answer.get("Errors", ()), names))
        return failed

    def _refused(
        self, errors: Iterable[Mapping[str, str]], names: Mapping[str, str]
    ) -> Iterator[tuple[str, StoreError]]:
        """What went wrong with single keys of a request; a missing one is success."""
        for item in errors:
            key = names.get(item.get("Key", ""), "")
            reply = Reply(item.get("Code", ""), 0, item.get("Message", ""))
            problem = typed_code(reply, key, self.uri, self._options)
            if not isinstance(problem, ObjectNotFoundError):
                yield key, problem

    # --- the bucket ----------------------------------------------------------------------------------------------

    def _writable(self, key: str) -> str:
        self._refuse_write()
        return self._location.name(check_key(key))

    def _bucket(self, deadline_ns: int) -> Bucket:
        """The bucket, for one operation. The first call connects: that sends nothing to the bucket."""
        made = self._filesystem()
        if self._connected is not made:
            client = self._connect(made, deadline_ns)
            check_endpoint(client.meta.endpoint_url)  # also what the environment and AWS's own files say
            known = client.meta.service_model.operation_model("PutObject").input_shape.members
            if not {"IfNoneMatch", "ChecksumCRC32"} <= set(known):
                raise PluginImportError("this botocore is too old: it would drop If-None-Match", "s3", "stratalog[s3]")
            self._connected = made
        return Bucket(made, self._location.bucket, self._clock, deadline_ns)

    def _connect(self, made: Any, deadline_ns: int) -> Any:
        try:
            return run(made.loop, made.set_session, seconds_left(self._clock, deadline_ns, self.uri))
        except Exception as error:  # noqa: BLE001 - libraries raise what they like
            problem = self._typed(error, self.uri)
            if type(problem) is not StoreError:
                raise problem from self._options.safe_cause(error)
            text = f"S3 cannot be set up with these options: {problem.reason}"
            raise ConfigError(text) from self._options.safe_cause(error)

    def _make(self) -> Any:
        quieten_botocore()
        from s3fs import S3FileSystem  # noqa: PLC0415 - an extra, and slow to import

        try:
            made = S3FileSystem(**filesystem_options(self._options.reveal()))
        except (TypeError, ValueError, KeyError) as error:
            text = f"s3fs does not take these options: {self._options.redact(str(error))}"
            raise ConfigError(text) from self._options.safe_cause(error)
        made.retries = 1
        return made

    def _dispose(self, made: Any) -> None:
        if self._connected is not made:
            return
        try:
            run(made.loop, made.s3.close, _CLOSE_S)
        except Exception as error:  # noqa: BLE001 - nobody can do anything about it, and s3fs tries again at exit
            _LOGGER.debug("connections were not closed uri=%s error=%s", self.uri, type(error).__name__)

    def _object_info(self, item: Mapping[str, Any]) -> ObjectInfo:
        modified = item.get("LastModified")
        modified_ms = int(modified.timestamp() * 1000) if modified is not None else 0
        return ObjectInfo(self._location.key(item["Key"]), int(item["Size"]), _etag(item), modified_ms)


def open_s3(context: OpenContext) -> ObjectStore:
    """A store over a bucket.

    Raises:
        PluginImportError: s3fs is not installed; ``stratalog[s3]`` has it.
        ConfigError: the URI or an option is not allowed.
    """
    try:
        import s3fs  # noqa: F401, PLC0415 - tells now whether it is there
    except ImportError as error:
        raise PluginImportError(f"S3 needs s3fs ({error})", "s3", "stratalog[s3]") from error
    location, options = parse_location(context.location), SecretOptions(context.options)
    filesystem_options(options.reveal())  # tells now what is wrong with them
    return S3Store(location, options, context.env.clock, read_only=context.read_only)


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')
