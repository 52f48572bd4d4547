"""Unfinished multipart uploads, as a killed writer leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3

from stratalog.spi import ObjectStore


def left_upload(uri: str, options: Mapping[str, Any], key: str) -> str:
    """Begin a multipart upload below ``uri``, send one part, and do not complete it. Return its upload id."""
    client = boto3.client(
        "s3",
        endpoint_url=options["endpoint_url"],
        region_name="us-east-1",
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    name = f"{prefix}/{key}".removeprefix("/")
    upload: str = client.create_multipart_upload(Bucket=bucket, Key=name)["UploadId"]
    client.upload_part(Bucket=bucket, Key=name, UploadId=upload, PartNumber=1, Body=b"part")
    client.close()
    return upload


def check_unfinished(store: ObjectStore, uri: str, options: Mapping[str, Any], deadline_ns: int) -> None:
    """Check that a store lists unfinished uploads by prefix and aborts each one, also if a key has several."""
    expected_uploads = {(key, left_upload(uri, options, key)) for key in ("a/x", "a/x", "a/y", "b/z")}
    assert {
        (uploads.key, uploads.upload_id) for uploads in store.unfinished("", deadline_ns=deadline_ns)
    } == expected_uploads
    uploads = store.unfinished("a/", deadline_ns=deadline_ns)
    assert sorted(upload.key for upload in uploads) == ["a/x", "a/x", "a/y"]
    assert all(upload.begun_ms > 0 for upload in uploads)
    assert store.list("", deadline_ns=deadline_ns) == []
    for upload in uploads:
        store.abort(upload, deadline_ns=deadline_ns)
        store.abort(upload, deadline_ns=deadline_ns)
    assert [upload.key for upload in store.unfinished("", deadline_ns=deadline_ns)] == ["b/z"]
