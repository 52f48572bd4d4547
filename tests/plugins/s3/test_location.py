from __future__ import annotations

import pytest

from stratalog.errors import ConfigError
from stratalog_s3.location import Location, check_key, check_prefix, key_at, parse_location, place_of


@pytest.mark.parametrize(
    ("uri", "location", "text"),
    [
        ("s3://bucket", Location("s3", "bucket", ""), "s3://bucket"),
        ("s3://bucket/", Location("s3", "bucket", ""), "s3://bucket"),
        ("S3://bucket/a/b/", Location("s3", "bucket", "a/b"), "s3://bucket/a/b"),
        ("s3a://bucket/a", Location("s3a", "bucket", "a"), "s3a://bucket/a"),
        ("file:///var/tier/", Location("file", "", "var/tier"), "file:///var/tier"),
        ("file://localhost/var", Location("file", "", "var"), "file:///var"),
        ("memory://name/p", Location("memory", "name", "p"), "memory://name/p"),
        (
            "abfs://box@account.dfs.core.windows.net/p",
            Location("abfs", "box@account.dfs.core.windows.net", "p"),
            "abfs://box@account.dfs.core.windows.net/p",
        ),
    ],
)
def test_uris_are_taken_apart(uri: str, location: Location, text: str) -> None:
    assert parse_location(uri) == location
    assert str(location) == text
    assert parse_location(text) == location


@pytest.mark.parametrize(
    "uri",
    [
        "", "bucket/prefix", "/var/tier", "s3:bucket", "s3://", "s3:///prefix", "file://", "file:///", "file://host/x",
        "s3://bucket/a//b", "s3://bucket/../b", "s3://bucket/./b", "s3://bucket/a?x=1", "s3://bucket/a#b",
        "s3://bucket/a\\b", "s3://bucket/a\0b", "zip://a.zip::s3://bucket", "s3://key:secret@bucket", "s3://key@bucket",
        "s3://key:sec/ret@bucket/prefix", "s3://key:secret", "gs://key:sec/ret@bucket/prefix",
    ],
)  # fmt: skip
def test_a_uri_that_names_no_place_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError):
        parse_location(uri)


@pytest.mark.parametrize("prefix", ["", "a", "a/b"])
def test_keys_are_relative_to_the_prefix(prefix: str) -> None:
    location = Location("s3", "bucket", prefix)
    assert location.name("k/1") == f"{prefix}/k/1".lstrip("/")
    assert location.key(location.name("k/1")) == "k/1"


@pytest.mark.parametrize("key", ["a", "a/b", "a.b/..c/d..", "topic-AAAA/0/manifest/00000000000000000001", "ä", "a b"])
def test_sound_keys_pass(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a\nb", "a\\b", "\x7f", "ä" * 513])
def test_keys_that_could_leave_their_place_are_refused(key: str) -> None:
    with pytest.raises(ConfigError):
        check_key(key)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "a/.", "a/b."])
def test_prefixes_may_end_anywhere(prefix: str) -> None:
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "/a", "a//", "../", "..", "a/../", "a/..", "a\n"])
def test_prefixes_do_not_climb(prefix: str) -> None:
    with pytest.raises(ConfigError):
        check_prefix(prefix)


# --- paths of keys on a file system ------------------------------------------------------------------------------

LONG = "t" * 249 + "-ABEiM0RVZneImaq7zN3u_w"


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("a/b.seg", "a/b.seg"),
        (f"{'t' * 232}-ABEiM0RVZneImaq7zN3u_w/0/manifest/1", f"{'t' * 232}-ABEiM0RVZneImaq7zN3u_w/0/manifest/1"),
        (f"{LONG}/0/manifest/1", f"{LONG[:254]}+/{LONG[254:]}/0/manifest/1"),
        (f"a/{LONG}", f"a/{LONG[:254]}+/{LONG[254:]}"),
        ("x" * 600, f"{'x' * 254}+/{'x' * 254}+/{'x' * 92}"),
        ("y" * 254 + "+", "y" * 254 + "+"),
    ],
)
def test_a_name_that_is_too_long_is_cut_and_comes_back(key: str, place: str) -> None:
    assert place_of(key) == place
    assert key_at(place) == key
    assert all(len(part) <= 255 for part in place.split("/"))


@pytest.mark.parametrize("key", ["y" * 254 + "+/x", "z" * 254 + ".."])
def test_a_name_that_would_come_back_as_another_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="not allowed on a file system"):
        place_of(key)
