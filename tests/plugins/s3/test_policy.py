"""The permissions on the page docs/object-stores.md are exactly those that the requests of the store need."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.spi import BytesSource, ObjectStore
from stratalog.testing.s3 import LocalS3
from stratalog_s3.settings import MIN_PART_BYTES, S3Section

PAGE = Path(__file__).parents[3] / "docs" / "object-stores.md"
OpenStore = Callable[..., ObjectStore]
RIGHTS = {  # from AWS's service authorization reference
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "GetObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "DeleteObjects": "s3:DeleteObject",
}


def policy(heading: str) -> set[str]:
    """Return the actions of the policy below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2]
    match = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert match is not None
    return {action for statement in json.loads(match[1])["Statement"] for action in statement["Action"]}


@pytest.fixture
def store(open_store: OpenStore, local_s3: LocalS3, s3_tier: str) -> ObjectStore:
    return open_store(s3_tier, local_s3.options, section=S3Section(part_bytes=MIN_PART_BYTES))


def rights(local_s3: LocalS3) -> set[str]:
    return {RIGHTS[operation] for operation, count in local_s3.counts.items() if count}


def test_a_writer_needs_the_rights_of_the_page(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    local_s3.counts.clear()
    large = BytesSource(bytes(2 * MIN_PART_BYTES + 1))
    store.create("small", b"data", deadline_ns=deadline_ns)
    store.put_file("large", large, deadline_ns=deadline_ns)
    local_s3.fail("UploadPart", status=403, code="AccessDenied", times=1)
    with pytest.raises(StorageError):
        store.put_file("aborted", large, deadline_ns=deadline_ns)
    local_s3.heal()
    assert store.read("large", 1, 3, deadline_ns=deadline_ns) == bytes(2)
    assert [info.key for info in store.list("", deadline_ns=deadline_ns)] == ["large", "small"]
    store.unfinished("", deadline_ns=deadline_ns)
    store.delete(["small", "large"], deadline_ns=deadline_ns)
    assert rights(local_s3) == policy("Rights to write") == set(RIGHTS.values())


def test_a_reader_needs_two_rights(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    store.create("small", b"data", deadline_ns=deadline_ns)
    local_s3.counts.clear()
    store.list("", deadline_ns=deadline_ns)
    store.read("small", deadline_ns=deadline_ns)
    assert rights(local_s3) == policy("Rights to read")
