"""Settings of the object stores: ``[plugins.s3]``, and the settings of stores on other clouds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final
from urllib.parse import urlencode

from stratalog.spi import Section, key

MIN_PART_BYTES: Final = 5 << 20  # S3's limit for all parts except the last part
MAX_PART_BYTES: Final = 5 << 30  # S3's limit
MAX_TAGS: Final = 10  # S3's limit
_KMS_ENCRYPTIONS: Final = frozenset({"aws:kms", "aws:kms:dsse"})
_TAG_KEY: Final = re.compile(r"[\w +\-.:/@]{1,128}\Z")
_TAG_VALUE: Final = re.compile(r"[\w +\-=.:/@]{0,256}\Z")


def _wrong_tags(tags: tuple[str, ...]) -> str:
    names = [tag.partition("=")[0] for tag in tags]
    if len(tags) > MAX_TAGS:
        return f"must be at most {MAX_TAGS} tags"
    if len(set(names)) < len(names):
        return "must name each tag once"
    for tag, name in zip(tags, names, strict=True):
        mark, value = tag.partition("=")[1:]
        if not mark or not _TAG_KEY.match(name) or not _TAG_VALUE.match(value) or name.lower().startswith("aws:"):
            return (
                f"must be a list of name=value in the characters that S3 allows, and {tag[:64]!r} is not of this form"
            )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSection(Section):
    """Settings of ``[plugins.gcs]``, ``[plugins.abfs]`` and ``[plugins.fsspec]``.

    A tier option overrides the setting of the same name.
    """

    title: ClassVar[str] = "Object stores of other libraries"

    allow_http: bool = key(
        "allow_http",
        False,
        doc="Accept an http:// endpoint on another machine. The network between can read and change records; a warning "
        "is logged once.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Section(TransportSection):
    """Settings of ``[plugins.s3]``. A tier option overrides the setting of the same name.

    The storage class applies only to segments, because colder classes charge extra for small and short-lived objects,
    such as manifests. There is no setting for storage classes whose objects must be restored before a read.
    """

    title: ClassVar[str] = "Object store s3"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    endpoint_url: str = key("endpoint_url", "",
        doc="URL of the service, for MinIO, Ceph and others. Default: AWS_ENDPOINT_URL, then AWS.")
    region: str = key("region", "",
        doc="Region of the bucket. Default: AWS_DEFAULT_REGION, then the configuration files of AWS.")
    addressing: str = key("addressing", "auto", choices=("auto", "path", "virtual"),
        doc="Place of the bucket name in requests: the path, the host name (virtual), or as botocore chooses (auto).")
    part_bytes: int = key("part.bytes", 64 << 20, at_least=MIN_PART_BYTES, at_most=MAX_PART_BYTES,
        doc="Size of the parts of an upload. Smaller objects are uploaded in one request.")
    checksum: str = key("checksum", "crc32c", choices=("crc32c", "crc32", "md5", "none"),
        doc="Checksum by which the store checks uploads. The oldest servers of S3's protocol know only md5.")
    encryption: str = key("encryption", "none", choices=("none", "AES256", "aws:kms", "aws:kms:dsse"),
        doc="Server-side encryption that uploads request; without it, the bucket decides.")
    encryption_key_id: str = key("encryption.key.id", "", doc="Id of the KMS key. Default: AWS's key for S3.")
    encryption_bucket_key: bool = key("encryption.bucket.key", True,
        doc="Use an S3 bucket key with aws:kms, which saves requests to KMS.")
    storage_class: str = key("storage.class", "",
        choices=("", "STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "EXPRESS_ONEZONE"),
        doc="Storage class of segments. Default: the bucket's.")
    tags: tuple[str, ...] = key("tags", (), check=_wrong_tags, doc="Tags of every object, as name=value; at most 10.")
    # fmt: on

    def contradiction(self) -> str:
        """Return the reason why S3 would refuse these settings; "" if there is none."""
        if self.encryption_key_id and self.encryption not in _KMS_ENCRYPTIONS:
            return "encryption.key.id needs encryption=aws:kms or aws:kms:dsse"
        return ""

    @property
    def object_parameters(self) -> dict[str, object]:
        """Parameters of each request that creates an object, by botocore's names."""
        parameters: dict[str, object] = {}
        if self.encryption != "none":
            parameters["ServerSideEncryption"] = self.encryption
        if self.encryption_key_id:
            parameters["SSEKMSKeyId"] = self.encryption_key_id
        if self.encryption == "aws:kms" and self.encryption_bucket_key:
            parameters["BucketKeyEnabled"] = True
        if self.tags:
            parameters["Tagging"] = urlencode(
                [(name, value) for name, _, value in (tag.partition("=") for tag in self.tags)]
            )
        return parameters

    @property
    def segment_parameters(self) -> dict[str, object]:
        """Parameters of each request that creates a segment's object, by botocore's names."""
        return {**self.object_parameters, **({"StorageClass": self.storage_class} if self.storage_class else {})}
