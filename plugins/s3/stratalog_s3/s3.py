"""Object store on S3 and compatible services, through s3fs."""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from stratalog.errors import ConfigError, ObjectNotFoundError, PluginImportError, StoreError, UnknownSettingError
from stratalog.spi import (
    Buffer,
    ByteSource,
    Capability,
    Clock,
    Created,
    ObjectInfo,
    ObjectStore,
    OpenContext,
    UnfinishedUpload,
)
from stratalog_s3.bucket import Bucket
from stratalog_s3.checksums import CHECKSUMS, sign_with_md5
from stratalog_s3.credentials import RotatingCredentials, rotating_session, take_provider
from stratalog_s3.deadline import run, seconds_left
from stratalog_s3.failures import WRONG_ENDPOINT, Reply, convert_reply
from stratalog_s3.location import Location, check_key, check_prefix, parse_location
from stratalog_s3.multipart import PartBudget, PartUploads
from stratalog_s3.options import filesystem_options, quieten_botocore
from stratalog_s3.secret import SecretOptions
from stratalog_s3.settings import S3Section
from stratalog_s3.store import StoreBase
from stratalog_s3.tls import UNENCRYPTED, check_client, check_endpoint
from stratalog_s3.uploads import one_part

PAGE_KEYS: Final = 1000  # S3's limit for requests that list or delete objects
_CLOSE_S: Final = 5.0
_UNKNOWN_OPTION: Final = re.compile(r"AioSession.*unexpected keyword argument '(\w+)'")  # it gets unknown options
_LOGGER: Final = logging.getLogger("stratalog.s3")


class S3Store(StoreBase):
    """Store of the objects in a bucket, or under a prefix of a bucket. Connects at the first call in each process.

    Args:
        upload_bytes: maximum memory for the bodies of uploads.
    """

    _checked_filesystem: Any = (
        None  # the file system whose client was checked; two threads may both check it, which does no harm
    )

    def __init__(
        self,
        location: Location,
        options: SecretOptions,
        clock: Clock,
        *,
        read_only: bool,
        settings: S3Section,
        upload_bytes: int,
    ) -> None:
        super().__init__(location, options, clock, read_only=read_only)
        self._settings, self._checksum = settings, CHECKSUMS[settings.checksum]
        self._budget = PartBudget(upload_bytes)
        self._parts = PartUploads(settings.part_bytes, self._checksum, settings.segment_parameters, self._budget)
        self._sent: Counter[str] = Counter()
        self._has_warned = False  # under _lock
        provider = take_provider(options.reveal())
        self._credentials = RotatingCredentials(provider, clock, options) if provider else None

    @property
    def capabilities(self) -> Capability:
        """``Capability.CREATE``, ``LIST_AFTER`` and ``BATCH_DELETE``; ``CHECKSUM`` unless ``checksum`` is ``none``.

        Some S3-compatible servers ignore the condition of ``create``. The core therefore tests this capability before
        it uses it.
        """
        checked = Capability.CHECKSUM if self._checksum.parameter else Capability.NONE
        return Capability.CREATE | Capability.LIST_AFTER | Capability.BATCH_DELETE | checked

    def sent(self) -> Mapping[str, int]:
        """Return the number of requests since the store was opened, by S3's names, such as ``GetObject``."""
        return {_request_name(method): count for method, count in self._sent.copy().items()}

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Upload an object in one request, or by a multipart upload if the object is larger than ``part.bytes``.

        A failed upload is aborted. ``limits.upload.bytes`` limits the memory for all uploads of the store together. The
        store verifies a checksum of each request, unless the setting ``checksum`` is ``none``.
        """
        name = self._writable(key)
        with self._errors(key):
            bucket = self._bucket(deadline_ns)
            if source.size_bytes <= self._settings.part_bytes:
                answer = self._put_whole(bucket, name, source, key)
            else:
                answer = self._parts.upload(bucket, name, source, key)
        return ObjectInfo(key, source.size_bytes, _etag(answer))

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object if the key does not exist. One request with ``If-None-Match: *`` checks and writes.

        ``Created.EXISTS`` can mean that this call created the object, because the HTTP client may repeat the request if
        the server has closed an idle connection. Read the object to find out who created it.
        """
        name, body = self._writable(key), bytes(data)
        with self._errors(key):
            bucket = self._bucket(deadline_ns)  # if this raises an error, nothing was sent
        with self._create_errors(key) as outcome:
            parameters = {**self._checksum.parameters(body), **self._settings.object_parameters}
            bucket.ask("put_object", Key=name, Body=body, IfNoneMatch="*", **parameters)
        return outcome[0]

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Return the bytes [start, end) of an object, by one GET. The defaults are the start and the end of the object.

        If the range is empty, the method sends no request.

        Raises:
            StoreError: the store sent another range, or too few bytes.
        """
        name = self._location.name(check_key(key))
        if end is not None and end <= (start or 0):
            return b""
        with self._errors(key):
            return self._bucket(deadline_ns).get(name, start, end)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Return up to ``limit`` objects, by one request per 1,000 keys.

        Raises:
            StoreError: the response is not a list of objects, as from a web server that is not an S3 server.
        """
        query = {"Prefix": self._location.name(check_prefix(prefix))}
        if after:
            query["StartAfter"] = self._location.name(after)
        objects: list[ObjectInfo] = []
        with self._errors(prefix):
            bucket = self._bucket(deadline_ns)
            while len(objects) < limit:
                answer = bucket.ask("list_objects_v2", MaxKeys=min(limit - len(objects), PAGE_KEYS), **query)
                if not {"Name", "IsTruncated"} & answer.keys():  # botocore reads any XML, and a page of HTML, as a list
                    text = "the response to a list request is not a list of objects"
                    raise StoreError(text, self.uri).advised(WRONG_ENDPOINT)
                infos = [self._object_info(item) for item in answer.get("Contents", ())]
                objects += [info for info in infos if info.key]  # consoles create an empty object for a "folder"
                if not answer.get("IsTruncated"):
                    break
                query = {"Prefix": query["Prefix"], "ContinuationToken": answer["NextContinuationToken"]}
        return objects

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete objects, by one request per 1,000 keys, and return the errors by key."""
        self._refuse_write()
        names = {self._location.name(check_key(key)): key for key in keys}
        failed: dict[str, StoreError] = {}
        with self._errors(next(iter(keys), "")):
            bucket = self._bucket(deadline_ns)
            pages = list(names)
            for first in range(0, len(pages), PAGE_KEYS):
                page = pages[first : first + PAGE_KEYS]
                deletion = {"Objects": [{"Key": name} for name in page], "Quiet": True}
                answer = bucket.ask("delete_objects", Delete=deletion)
                failed.update(self._failed_deletes(answer.get("Errors", ()), names))
        return failed

    def unfinished(self, prefix: str, *, deadline_ns: int) -> Sequence[UnfinishedUpload]:
        """Return the multipart uploads that are neither completed nor aborted, by one request per 1,000 uploads."""
        query = {"Prefix": self._location.name(check_prefix(prefix))}
        uploads: list[UnfinishedUpload] = []
        with self._errors(prefix):
            bucket = self._bucket(deadline_ns)
            while True:
                answer = bucket.ask("list_multipart_uploads", MaxUploads=PAGE_KEYS, **query)
                uploads += [self._upload(item) for item in answer.get("Uploads", ())]
                if not answer.get("IsTruncated"):
                    return uploads
                query["KeyMarker"], query["UploadIdMarker"] = answer["NextKeyMarker"], answer["NextUploadIdMarker"]

    def abort(self, upload: UnfinishedUpload, *, deadline_ns: int) -> None:
        """Abort a multipart upload. Do nothing if the upload was already completed or aborted."""
        name = self._writable(upload.key)
        try:
            with self._errors(upload.key):
                bucket = self._bucket(deadline_ns)
                bucket.ask("abort_multipart_upload", Key=name, UploadId=upload.upload_id)
        except ObjectNotFoundError:
            return

    def _put_whole(self, bucket: Bucket, name: str, source: ByteSource, key: str) -> Any:
        self._budget.take(source.size_bytes, seconds_left(self._clock, bucket.deadline_ns, key), key)
        try:
            body = one_part(source, key)
            parameters = {**self._checksum.parameters(body.getbuffer()), **self._settings.segment_parameters}
            return bucket.ask("put_object", Key=name, Body=body, **parameters)
        finally:
            self._budget.give_back(source.size_bytes)

    def _failed_deletes(
        self, errors: Iterable[Mapping[str, str]], names: Mapping[str, str]
    ) -> Iterator[tuple[str, StoreError]]:
        """Yield the key and the error of each key that was not deleted. A missing key counts as deleted."""
        for item in errors:
            key = names.get(item.get("Key", ""), "")
            reply = Reply(item.get("Code", ""), 0, item.get("Message", ""))
            problem = convert_reply(reply, key, self.uri, self._options)
            if not isinstance(problem, ObjectNotFoundError):
                yield key, problem

    # --- the bucket ----------------------------------------------------------------------------------------------

    def _writable(self, key: str) -> str:
        self._refuse_write()
        return self._location.name(check_key(key))

    def _bucket(self, deadline_ns: int) -> Bucket:
        """Return the bucket for one operation. The first call creates the client, without a request to the bucket.

        Raises:
            ConfigError: the options are wrong, or requests would be sent insecurely.
            PluginImportError: botocore is too old.
            StorageError: the store is closed, or the client could not be created before the deadline.
        """
        filesystem = self._filesystem()
        if self._checked_filesystem is not filesystem:
            client = self._connect(filesystem, deadline_ns)
            self._prepare_client(client, filesystem.session)
            members = client.meta.service_model.operation_model("PutObject").input_shape.members
            if not {"IfNoneMatch", "ChecksumCRC32C"} <= set(members):
                raise PluginImportError(
                    "this release of botocore is too old, because it drops If-None-Match: upgrade it",
                    "s3",
                    "stratalog[s3]",
                )
            self._checked_filesystem = filesystem
        return Bucket(filesystem, self._location.bucket, self._clock, deadline_ns, self._sent, self._renew)

    def _prepare_client(self, client: Any, session: Any) -> None:
        """Make a new client send the checksums of the settings.

        Raise ConfigError if requests would be insecure. If ``allow_http`` permits them, log a warning once.
        """
        check_client(client, session)  # includes the environment and AWS's own files
        if self._checksum is CHECKSUMS["md5"]:
            client.meta.events.register("before-sign.s3.DeleteObjects", sign_with_md5)
        host = check_endpoint(client.meta.endpoint_url, allow_http=self._settings.allow_http)
        with self._lock:
            should_warn = bool(host) and not self._has_warned
            self._has_warned |= should_warn
        if should_warn:
            _LOGGER.warning(UNENCRYPTED, host, self.uri)

    async def _renew(self, client: Any) -> bool:
        """Replace the expired credentials of ``client``. Return False for fixed credentials: they cannot be replaced.

        New credentials come from the user's function, or from the environment and AWS's files.
        """
        if self._credentials is not None:
            self._credentials.discard()
            return True
        filesystem = self._filesystem()
        if {"key", "session"} & set(self._options.reveal()):
            return False
        if filesystem.s3 is client:  # no other request has replaced the client meanwhile
            self._prepare_client(await filesystem.set_session(refresh=True), filesystem.session)
            await client.close()
        return True

    def _connect(self, filesystem: Any, deadline_ns: int) -> Any:
        try:
            return run(filesystem.loop, filesystem.set_session, seconds_left(self._clock, deadline_ns, self.uri))
        except Exception as error:  # noqa: BLE001 - the errors of the libraries have no common type
            problem = self._convert_error(error, self.uri)
            if type(problem) is not StoreError:
                raise problem from self._options.safe_cause(error)
            if unknown := _UNKNOWN_OPTION.search(problem.reason):
                similar = difflib.get_close_matches(unknown[1], (*S3Section.keys(), "key", "secret", "token"), n=1)
                raise UnknownSettingError(
                    unknown[1], "tier options", similar[0] if similar else ""
                ) from self._options.safe_cause(error)
            text = f"S3 cannot be set up with these options: {problem.reason}"
            raise ConfigError(text) from self._options.safe_cause(error)

    def _make(self) -> Any:
        quieten_botocore()
        try:
            filesystem = _file_system(self._options, self._settings, self._credentials)
        except (TypeError, ValueError, KeyError) as error:
            text = f"s3fs refuses the tier options: {self._options.redact(str(error))}"
            raise ConfigError(text) from self._options.safe_cause(error)
        filesystem.retries = 1
        return filesystem

    def _dispose(self, filesystem: Any) -> None:
        if self._checked_filesystem is not filesystem:
            return
        try:
            run(filesystem.loop, filesystem.s3.close, _CLOSE_S)
        except Exception as error:  # noqa: BLE001 - a close cannot be retried here, and s3fs tries again at exit
            _LOGGER.debug("connections could not be closed uri=%s error=%s", self.uri, type(error).__name__)

    def _object_info(self, item: Mapping[str, Any]) -> ObjectInfo:
        return ObjectInfo(self._location.key(item["Key"]), int(item["Size"]), _etag(item), _ms(item, "LastModified"))

    def _upload(self, item: Mapping[str, Any]) -> UnfinishedUpload:
        return UnfinishedUpload(self._location.key(item["Key"]), item["UploadId"], _ms(item, "Initiated"))


def open_s3(context: OpenContext) -> ObjectStore:
    """Return a store on the bucket that the URI names. The store connects at its first call.

    Raises:
        PluginImportError: s3fs is not installed.
        ConfigError: the URI or an option is not allowed.
    """
    try:
        import s3fs  # noqa: F401, PLC0415 - fails now if s3fs is missing
    except ImportError as error:
        raise PluginImportError(f"S3 needs s3fs ({error})", "s3", "stratalog[s3]") from error
    location, options = parse_location(context.location), SecretOptions(context.options)
    settings = context.section if isinstance(context.section, S3Section) else S3Section()
    try:
        _file_system_options(options, settings)
    except ConfigError as error:
        raise error.with_traceback(None)  # noqa: B904 - the same error, without the frames that hold the options
    return S3Store(
        location,
        options,
        context.env.clock,
        read_only=context.read_only,
        settings=settings,
        upload_bytes=context.limits.upload_bytes,
    )


def _file_system_options(options: SecretOptions, settings: S3Section) -> dict[str, Any]:
    """Return the keyword arguments for s3fs. Raise ConfigError if the options are invalid."""
    revealed = options.reveal()
    take_provider(revealed)
    return filesystem_options(revealed, settings)


def _file_system(options: SecretOptions, settings: S3Section, credentials: RotatingCredentials | None) -> Any:
    from s3fs import S3FileSystem  # noqa: PLC0415 - an extra, and slow to import

    from stratalog_s3.direct import DirectSession  # noqa: PLC0415 - it imports aiobotocore

    arguments = _file_system_options(options, settings)
    # The user's option may replace this session class.
    arguments["config_kwargs"] = {"http_session_cls": DirectSession, **arguments["config_kwargs"]}
    if credentials is not None:
        arguments["session"] = rotating_session(credentials)
    return S3FileSystem(**arguments)


def _request_name(method: str) -> str:
    """Return S3's name of a botocore method, such as ``PutObject`` for ``put_object``."""
    return "".join(word.capitalize() for word in method.split("_"))


def _ms(item: Mapping[str, Any], name: str) -> int:
    """Return a time of a response in ms since 1970, or 0 if the response does not contain it."""
    time = item.get(name)
    return int(time.timestamp() * 1000) if time is not None else 0


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')
