"""Settings of uploads and storage classes, checked at the server that received the requests."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSRequest

from stratalog.config.engine_settings import Limits
from stratalog.errors import ConfigError
from stratalog.spi import Buffer, BytesSource, Capability, ObjectStore
from stratalog.testing.memory import memory_below
from stratalog.testing.s3 import LocalS3
from stratalog_s3.checksums import CHECKSUMS, sign_with_md5
from stratalog_s3.multipart import PartBudget
from stratalog_s3.settings import MIN_PART_BYTES, S3Section

OpenStore = Callable[..., ObjectStore]


@pytest.fixture
def client(local_s3: LocalS3) -> Iterator[Any]:
    options = local_s3.options
    s3_client = boto3.client(
        "s3",
        "us-east-1",
        endpoint_url=local_s3.endpoint_url,
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )
    yield s3_client
    s3_client.close()


def section(**values: object) -> S3Section:
    return S3Section.from_mapping({name.replace("_", "."): value for name, value in values.items()}, "test")


@pytest.mark.parametrize("size_bytes", [10, MIN_PART_BYTES + 1], ids=["whole", "in parts"])
@pytest.mark.long
def test_a_segment_is_kept_according_to_the_settings(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, client: Any, deadline_ns: int, size_bytes: int
) -> None:
    settings = section(
        part_bytes=MIN_PART_BYTES,
        encryption="aws:kms",
        encryption_key_id="alias/mine",
        storage_class="STANDARD_IA",
        tags=["team=data + more", "cost=7"],
    )
    store = open_store(s3_tier, local_s3.options, section=settings)
    store.put_file("a", BytesSource(bytes(size_bytes)), deadline_ns=deadline_ns)
    object_address = {"Bucket": local_s3.bucket, "Key": f"{s3_tier.rpartition('/')[2]}/a"}
    head = client.head_object(**object_address)
    assert head["ServerSideEncryption"] == "aws:kms"
    assert head["SSEKMSKeyId"].endswith("alias/mine")
    assert head["StorageClass"] == "STANDARD_IA"
    tags = {tag["Key"]: tag["Value"] for tag in client.get_object_tagging(**object_address)["TagSet"]}
    assert tags == {"team": "data + more", "cost": "7"}
    assert store.read("a", 0, 5, deadline_ns=deadline_ns) == bytes(5)


def test_a_manifest_is_encrypted_and_tagged_and_never_cold(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, client: Any, deadline_ns: int
) -> None:
    """Cold storage classes charge for at least 128 KiB and 30 days. A manifest is small and lives for about an hour."""
    settings = section(encryption="AES256", storage_class="GLACIER_IR", tags="team=data")
    store = open_store(s3_tier, local_s3.options, section=settings)
    store.create("m", b"{}", deadline_ns=deadline_ns)
    object_address = {"Bucket": local_s3.bucket, "Key": f"{s3_tier.rpartition('/')[2]}/m"}
    head = client.head_object(**object_address)
    assert head["ServerSideEncryption"] == "AES256"
    assert head.get("StorageClass", "STANDARD") == "STANDARD"
    assert client.get_object_tagging(**object_address)["TagSet"] == [{"Key": "team", "Value": "data"}]


@pytest.mark.parametrize("kind", CHECKSUMS)
@pytest.mark.parametrize("size_bytes", [10, MIN_PART_BYTES + 1], ids=["whole", "in parts"])
@pytest.mark.long
def test_every_kind_of_checksum_is_taken(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int, kind: str, size_bytes: int
) -> None:
    settings = section(part_bytes=MIN_PART_BYTES, checksum=kind)
    store = open_store(s3_tier, local_s3.options, section=settings)
    store.put_file("a", BytesSource(bytes(size_bytes)), deadline_ns=deadline_ns)
    store.create("m", b"{}", deadline_ns=deadline_ns)
    assert [info.size_bytes for info in store.list("", deadline_ns=deadline_ns)] == [size_bytes, 2]
    assert (Capability.CHECKSUM in store.capabilities) == (kind != "none")


class _OldServer(BaseHTTPRequestHandler):
    """Server that knows no checksum except ``Content-MD5``, and refuses to delete objects without it."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        is_valid = self.headers["Content-MD5"] == md5 and not any("checksum" in name.lower() for name in self.headers)
        text = b"<DeleteResult/>" if is_valid else b"<Error><Code>MissingContentMD5</Code></Error>"
        self.send_response(200 if is_valid else 400)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass


def test_an_old_server_gets_md5_of_a_deletion(open_store: OpenStore, deadline_ns: int) -> None:
    with HTTPServer(("127.0.0.1", 0), _OldServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
            store = open_store("s3://bucket/prefix", options, section=section(checksum="md5"))
            assert store.delete(["a", "b"], deadline_ns=deadline_ns) == {}
        finally:
            server.shutdown()
            thread.join()


def test_a_deletion_has_one_md5_if_two_threads_have_prepared_the_client() -> None:
    """botocore would sign both, and send one."""
    request = AWSRequest("POST", data=b"body")
    for _ in range(2):
        sign_with_md5(request)
    assert len(request.headers.get_all("Content-MD5")) == 1


def test_checksums_are_those_of_the_standards() -> None:
    """The values are the check values of CRC-32C and CRC-32 for "123456789", and the MD5 of no bytes (RFC 1321)."""
    assert CHECKSUMS["crc32c"].compute(b"123456789").hex() == "e3069283"
    assert CHECKSUMS["crc32"].compute(b"123456789").hex() == "cbf43926"
    assert CHECKSUMS["md5"].compute(b"").hex() == "d41d8cd98f00b204e9800998ecf8427e"
    assert CHECKSUMS["none"].parameters(b"x") == {}
    assert base64.b64decode(CHECKSUMS["crc32c"].parameters(b"")["ChecksumCRC32C"]) == bytes(4)


@pytest.mark.parametrize(
    "values",
    [
        {"part.bytes": MIN_PART_BYTES - 1},
        {"checksum": "sha1"},
        {"encryption": "AES"},
        {"encryption.key.id": "alias/mine"},
        {"encryption": "AES256", "encryption.key.id": "alias/mine"},
        {"storage.class": "GLACIER"},
        {"storage.class": "DEEP_ARCHIVE"},
        {"tags": "team"},
        {"tags": "a=1,a=2"},
        {"tags": "aws:a=1"},
        {"tags": "a=<1>"},
        {"tags": f"{'a' * 129}=1"},
        {"tags": f"a={'1' * 257}"},
        {"tags": ",".join(f"t{number}=1" for number in range(11))},
    ],
    ids=str,
)
def test_settings_that_s3_would_refuse_are_refused_when_the_engine_opens(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        S3Section.from_mapping(values, "[plugins.s3]")


class Streamed:
    """A source that holds one chunk at a time."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        for start in range(0, self.size_bytes, chunk_bytes):
            yield bytes(min(chunk_bytes, self.size_bytes - start))


def test_uploads_stay_inside_their_share_of_memory(
    open_store: OpenStore, raw_server: Callable[[bytes | None], str], deadline_ns: int
) -> None:
    """Upload 64 MiB in parts of 5 MiB, two of them at a time."""
    answer = (
        b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: 108\r\n\r\n'
        b"<CompleteMultipartUploadResult><UploadId>u</UploadId><Bucket>b</Bucket></CompleteMultipartUploadResult>     "
    )
    limits = replace(Limits(), upload_bytes=2 * MIN_PART_BYTES)
    store = open_store(
        "s3://bucket/p",
        {"key": "k", "secret": "s", "endpoint_url": raw_server(answer)},
        section=section(part_bytes=MIN_PART_BYTES),
        limits=limits,
    )
    store.put_file("warm", Streamed(64 << 20), deadline_ns=deadline_ns)
    with memory_below(2 * MIN_PART_BYTES + (4 << 20)):
        store.put_file("large", Streamed(64 << 20), deadline_ns=deadline_ns)
    assert store.sent() == {"CreateMultipartUpload": 2, "UploadPart": 26, "CompleteMultipartUpload": 2}


def test_an_upload_in_one_request_takes_its_size_once(
    open_store: OpenStore, raw_server: Callable[[bytes | None], str], deadline_ns: int
) -> None:
    """A list of chunks, the joined bytes, and a copy in the client would need three times the size of the upload."""
    answer = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n'
    store = open_store("s3://bucket/p", {"key": "k", "secret": "s", "endpoint_url": raw_server(answer)})
    store.put_file("warm", BytesSource(b""), deadline_ns=deadline_ns)
    with memory_below((32 << 20) + (4 << 20)):
        store.put_file("large", Streamed(32 << 20), deadline_ns=deadline_ns)
    assert store.sent() == {"PutObject": 2}


def test_a_share_that_is_taken_is_waited_for_until_the_deadline() -> None:
    from stratalog.errors import StoreTimeoutError  # noqa: PLC0415 - only here

    budget = PartBudget(10)
    budget.take(100, 0, "key")  # a single part is always accepted, also a larger one than the budget
    with pytest.raises(StoreTimeoutError):
        budget.take(1, 0, "key")
    budget.give_back(100)
    budget.take(6, 0, "key")
    budget.take(4, 0, "key")
    with pytest.raises(StoreTimeoutError):
        budget.take(1, 0, "key")
