"""Components with a number: each opens at its first use, and a wrong component does not affect the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from stratalog.errors import PluginClashError, PluginError, UnknownComponentError, UnsupportedCompressionError
from stratalog.model.batches import Buffer
from stratalog.model.numbered_components import NumberedComponents
from stratalog.segment.components import MAGICS, FormatTable
from stratalog.spi import Codec, CodecTable, RecordFormat
from stratalog.spi.codecs import CODEC_IDS


class Numbered(Codec):
    levels = None

    def __init__(self, number: object) -> None:
        self.id = number  # type: ignore[misc, assignment] # what a plugin may do

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        raise AssertionError(level, magic, data)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        raise AssertionError(limit_bytes, magic, data)


class Openers:
    def __init__(self, **numbers: object) -> None:
        self.numbers, self.opened = numbers, list[str]()

    def table(self) -> CodecTable:
        return CodecTable(
            offers=NumberedComponents("codec", "id", CODEC_IDS, {name: self.opener(name) for name in self.numbers})
        )

    def opener(self, name: str) -> Callable[[], Codec]:
        def opened() -> Codec:
            self.opened.append(name)
            number = self.numbers[name]
            if isinstance(number, Exception):
                raise number
            return Numbered(number)

        return opened


def test_nothing_is_opened_before_the_first_use() -> None:
    openers = Openers(lz4=3, zstd=4)
    table = openers.table()
    assert openers.opened == []
    assert [table.name_of(number) for number in (3, 4)] == ["lz4", "zstd"]
    assert table.by_name("zstd") is table.by_id(4)
    assert openers.opened == ["lz4", "zstd"]


@pytest.mark.parametrize("wrong", [PluginError("codec 'bad' of plugin p: no library"), 0, 8, None, "3"])
def test_a_codec_that_is_wrong_keeps_no_other_from_use(wrong: object) -> None:
    table = Openers(bad=wrong, lz4=3).table()
    assert table.by_name("lz4") is table.by_id(3)
    with pytest.raises(PluginError, match="codec 'bad'"):
        table.by_name("bad")
    with pytest.raises(UnsupportedCompressionError, match=r"no codec 'zst' is installed; installed: lz4$"):
        table.by_name("zst")
    with pytest.raises(UnsupportedCompressionError, match=r"no codec with id 4 is installed; codec 'bad'"):
        table.by_id(4)


def test_an_id_that_two_codecs_have_is_used_by_neither() -> None:
    table = Openers(mine=3, lz4=3, zstd=4).table()
    for use in (partial(table.by_id, 3), partial(table.by_name, "lz4"), partial(table.by_name, "mine")):
        with pytest.raises(PluginClashError, match=r"codec 'mine' and codec 'lz4' have the same id 3"):
            use()
    assert table.name_of(4) == "zstd"


def formats(**openers: Callable[[], RecordFormat]) -> FormatTable:
    return FormatTable(offers=NumberedComponents("record format", "magic", MAGICS, openers))


def failing() -> RecordFormat:
    raise PluginError("record format 'v9' of plugin p: no library")


def test_bytes_of_a_missing_format_are_not_reported_as_damage() -> None:
    """Recovery truncates a log at damage. It would therefore delete all records of a format that is not installed."""
    for magic in range(3):
        with pytest.raises(UnknownComponentError, match=f"no record format with magic {magic} is installed"):
            formats().get(magic)
    assert formats().get(77) is None
    with pytest.raises(UnknownComponentError, match="record format 'v9' of plugin p: no library"):
        formats(v9=failing).get(77)
