"""Codecs, which compress the records of one batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final

from stratalog.errors import PluginClashError, UnsupportedCompressionError
from stratalog.model.batches import Buffer
from stratalog.model.numbered_components import NumberedComponents, Opened


class Codec(ABC):
    """One compression codec. Thread-safe.

    A codec accepts any buffer, does not change its input, and does not overwrite an earlier result.

    Attributes:
        id: the codec id, 1 to 7. Bits 0 to 2 of a batch's attributes store it, so it must never change.
        levels: the allowed compression levels; None if the codec has no levels.
    """

    id: ClassVar[int]
    levels: ClassVar[range | None]

    @abstractmethod
    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Return the compressed records of one batch. If ``level`` is None, use the codec's default level.

        ``magic`` is the magic of the batch; only lz4 uses it. A codec without levels ignores ``level``. For every level
        and magic, ``decompress`` must return ``data`` from the result. If a codec does not come with stratalog, the
        engine checks each result, and refuses the append if the check fails.

        Raises:
            ConfigError: ``level`` is not in ``levels``.
        """

    @abstractmethod
    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Return the decompressed records of one batch; ``magic`` is the magic of the batch.

        ``data`` holds one or more compressed streams. The result has the contents of all streams, or of the first one
        only. Bytes after the streams must not appear in the result: ignore them, or raise CorruptBatchError. A codec
        must not allocate more than ``limit_bytes`` for the result, even if ``data`` states a larger size.

        Raises:
            DecompressedSizeError: the result would exceed ``limit_bytes``.
            CorruptBatchError: the data is not a valid stream of this codec, or ends too early; ``file`` is "". The
                caller replaces ``position`` by the position of the batch.
        """


CODEC_IDS: Final = range(1, 8)  # three bits of a batch's attributes; 0 means no compression


class CodecTable:
    """The codecs of an engine, by id and by name. Thread-safe.

    Args:
        codecs: open codecs by name.
        offers: codecs that are not open yet. All of them are opened when an id or name is first not found in
            ``codecs``.

    Raises:
        PluginClashError: two of ``codecs`` have the same id. If two codecs of ``offers`` have the same id, the
            constructor does not raise it: each later lookup of that id, or of one of the two names, raises it.
    """

    def __init__(
        self, codecs: Iterable[tuple[str, Codec]] = (), offers: NumberedComponents[Codec] | None = None
    ) -> None:
        self._by_name = dict(codecs)
        self._by_id = dict[int, Codec]()
        self._offers = offers or NumberedComponents[Codec]("codec", "id", CODEC_IDS)
        for name, codec in self._by_name.items():
            if self._by_id.setdefault(codec.id, codec) is not codec:
                raise PluginClashError(
                    f"codec {name!r} and codec {self.name_of(codec.id)!r} have the same id {codec.id}"
                )

    def by_id(self, codec_id: int) -> Codec:
        """Return the codec with this id.

        Raises:
            UnsupportedCompressionError: no codec with this id is installed, or it cannot be opened; the text contains
                the reason. Id 0 means no compression, and is not the id of a codec.
            PluginClashError: several codecs have this id.
        """
        try:
            return self._by_id[codec_id]
        except KeyError:
            return self._look_up(codec_id)

    def by_name(self, name: str) -> Codec:
        """Return the codec with this name.

        Raises:
            UnsupportedCompressionError: no codec with this name is installed.
            StorageError: the codec cannot be opened. The error is a PluginClashError if another codec has the same id.
        """
        codec = self._by_name.get(name)
        if codec is None:
            components = self._open()
            components.check(name)
            codec = components.by_name.get(name)
            if codec is None:
                names = ", ".join(sorted(components.by_name))
                raise UnsupportedCompressionError(f"no codec {name!r} is installed; installed: {names}")
        return codec

    def name_of(self, codec_id: int) -> str:
        """Return the name of the codec with this id, ``none`` for 0.

        Raises:
            UnsupportedCompressionError: no codec with this id is installed, or it cannot be opened.
            PluginClashError: several codecs have this id.
        """
        if codec_id == 0:
            return "none"
        codec = self.by_id(codec_id)
        return next(name for name, other in self._by_name.items() if other is codec)

    def _look_up(self, codec_id: int) -> Codec:
        components = self._open()
        if codec_id in self._by_id:
            return self._by_id[codec_id]
        if codec_id in components.clashes:
            raise components.clashes[codec_id].with_traceback(None)
        raise UnsupportedCompressionError(f"no codec with id {codec_id} is installed{components.absence()}")

    def _open(self) -> Opened[Codec]:
        components = self._offers.open_all()
        if not components.by_name.keys() <= self._by_name.keys():
            self._by_name = {**components.by_name, **self._by_name}
            self._by_id = {**components.by_number, **self._by_id}
        return components
