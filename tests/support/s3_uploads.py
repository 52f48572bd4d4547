"""Uploads in parts that nobody ends, as a writer leaves them that is killed."""

from __future__ import annotations

from stratalog.spi import Env, ObjectStore
from stratalog_s3.s3 import S3Store

_DEADLINE_NS = 30_000_000_000


def left_upload(store: ObjectStore, key: str) -> str:
    """Begin an upload, send one part, and say no more; the store's name of it."""
    assert isinstance(store, S3Store)
    bucket, name = store._bucket(Env().clock.monotonic_ns() + _DEADLINE_NS), store._location.name(key)
    upload: str = bucket.ask("create_multipart_upload", Key=name)["UploadId"]
    bucket.ask("upload_part", Key=name, UploadId=upload, PartNumber=1, Body=b"part")
    return upload


def check_unfinished(store: ObjectStore, deadline_ns: int) -> None:
    """Uploads are told by prefix, aborted one by one, and several of one key are several."""
    made = {(key, left_upload(store, key)) for key in ("a/x", "a/x", "a/y", "b/z")}
    assert {(found.key, found.upload_id) for found in store.unfinished("", deadline_ns=deadline_ns)} == made
    found = store.unfinished("a/", deadline_ns=deadline_ns)
    assert sorted(upload.key for upload in found) == ["a/x", "a/x", "a/y"]
    assert all(upload.begun_ms > 0 for upload in found)
    assert store.list("", deadline_ns=deadline_ns) == []
    for upload in found:
        store.abort(upload, deadline_ns=deadline_ns)
        store.abort(upload, deadline_ns=deadline_ns)
    assert [upload.key for upload in store.unfinished("", deadline_ns=deadline_ns)] == ["b/z"]
