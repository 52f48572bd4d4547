"""Codecs: what compresses the records of one batch. Implementations are pure and thread-safe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from stratalog.errors import PluginClashError, UnsupportedCompressionError
from stratalog.model.batches import Buffer


class Codec(ABC):
    """One compression codec.

    Attributes:
        id: bits 0 to 2 of the attributes; persistent.
        levels: the levels allowed, None if the codec has none.
    """

    id: ClassVar[int]
    levels: ClassVar[range | None]

    @abstractmethod
    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Compress one batch's records. ``level`` None is the codec's default; ``magic`` matters to lz4 alone."""

    @abstractmethod
    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """The decompressed bytes.

        Raises:
            DecompressedSizeError: the result would pass ``limit_bytes``; raised before allocating past it.
            CorruptBatchError: the data is no valid stream of this codec; position is 0.
        """


class CodecTable:
    """The codecs of an engine, by id and by name.

    Raises:
        PluginClashError: two have the same id: batches would be decompressed by whichever came last.
    """

    def __init__(self, codecs: Iterable[tuple[str, Codec]] = ()) -> None:
        self._by_name = dict(codecs)
        self._by_id = dict[int, Codec]()
        for name, codec in self._by_name.items():
            if self._by_id.setdefault(codec.id, codec) is not codec:
                raise PluginClashError(
                    f"codec {name!r} and codec {self.name_of(codec.id)!r} have the same id {codec.id}"
                )

    def by_id(self, codec_id: int) -> Codec:
        """The codec with this id; UnsupportedCompressionError if none is installed."""
        try:
            return self._by_id[codec_id]
        except KeyError:
            raise UnsupportedCompressionError(f"no codec with id {codec_id} is installed") from None

    def by_name(self, name: str) -> Codec:
        """The codec with this name; UnsupportedCompressionError if none is installed."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnsupportedCompressionError(f"no codec {name!r} is installed") from None

    def name_of(self, codec_id: int) -> str:
        """The name of the codec with this id, ``none`` for 0; UnsupportedCompressionError if none is installed."""
        if codec_id == 0:
            return "none"
        codec = self.by_id(codec_id)
        return next(name for name, found in self._by_name.items() if found is codec)
