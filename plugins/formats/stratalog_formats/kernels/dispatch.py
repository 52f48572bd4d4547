"""Choice between the compiled and the pure Python kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, Final

from stratalog import Record, RecordColumns
from stratalog.spi import (
    ArrowBuffers,
    BatchTable,
    Buffer,
    Fields,
    IndexBuilder,
    OffsetPosition,
    PreparedBatches,
    Rules,
    extension,
)
from stratalog_formats.kernels import EXTENSIONS, bloom, buffers, decode, encode, entries, rebuild, retain, scan, search
from stratalog_formats.kernels.encode import Body
from stratalog_formats.kernels.rebuild import RowBuffers


@dataclass(frozen=True, slots=True)
class Kernels:
    """Functions of the compiled or of the pure Python modules.

    The pure Python modules document the functions. If a function exists only compiled, it is None in ``PYTHON``, and
    its module ``*_c`` documents it.
    """

    name: str
    scan_batches: Callable[[Buffer, int, int, bool], BatchTable]
    scan_messages: Callable[[int, Buffer, int, int, bool], BatchTable]
    assign: Callable[[PreparedBatches, int, int, int | None], None]
    seal_batch: Callable[[bytearray, int, int, int, int, int, int, int, int, int, int], None]
    decode_batches: Callable[[Buffer, BatchTable, memoryview | None, Fields], RecordColumns]
    pack_batches: (
        Callable[[Buffer, BatchTable, memoryview | None, int, Callable[..., Any], Fields], ArrowBuffers | None] | None
    )
    encode_records: Callable[[Sequence[Record]], Body]
    encode_columns: Callable[[RecordColumns, bool], Body]
    room: Callable[[int], bytearray]
    holds: Callable[[Buffer, bytes], bool]
    entries_up_to: Callable[[Buffer, int, int, int, int], int]
    offsets_around: Callable[
        [Buffer, int, int], tuple[OffsetPosition | None, OffsetPosition | None, OffsetPosition | None]
    ]
    offset_entries: Callable[[int, int, int, int, int], IndexBuilder]
    time_entries: Callable[[int, int, int, int, int, int], IndexBuilder]
    rebuild_pieces: Callable[[Buffer, RowBuffers, int, int], bytearray]
    hash_keys: Callable[[RecordColumns], bytes]
    distinct: Callable[[Buffer], bytes]
    fill_filter: Callable[[Buffer, int, int], bytearray]
    may_hold: Callable[[Buffer, bytes, int], bool]
    retain_plain: Callable[[Buffer, BatchTable, Sequence[Buffer], int | None, Sequence[bool] | None], bytearray]
    expand_batches: Callable[[BatchTable, int, Callable[..., Any]], ArrowBuffers | None] | None = None
    select: Callable[..., tuple[int, int, int] | None] | None = None
    prepare_batches: Callable[[Buffer, Rules, int], PreparedBatches | None] | None = None
    prepare_records: Callable[[Sequence[Record], Rules, int], PreparedBatches | None] | None = None


PYTHON: Final = Kernels(
    name="python",
    scan_batches=scan.scan_batches,
    scan_messages=scan.scan_messages,
    assign=scan.assign_batches,
    seal_batch=scan.seal_batch,
    decode_batches=decode.decode_batches,
    pack_batches=None,
    encode_records=encode.encode_records,
    encode_columns=encode.encode_columns,
    room=buffers.room,
    holds=buffers.holds,
    entries_up_to=search.entries_up_to,
    offsets_around=search.offsets_around,
    offset_entries=entries.OffsetEntries,
    time_entries=entries.TimeEntries,
    rebuild_pieces=rebuild.rebuild_pieces,
    hash_keys=bloom.hash_keys,
    distinct=bloom.distinct,
    fill_filter=bloom.fill_filter,
    may_hold=bloom.may_hold,
    retain_plain=retain.retain_plain,
)


def _load_compiled() -> Kernels | None:
    """Return the compiled functions. Those that replace a Python function have its name, in the module ``NAME_c``.

    Return None if an extension is missing, or was built for another class ``Record``.
    """
    modules = {module.rpartition(".")[2]: extension(module) for module in EXTENSIONS}
    if None in modules.values():
        return None
    extensions = SimpleNamespace(**modules)
    if extensions.encode_c.RECORD is not Record:
        return None
    functions = {item.name: getattr(PYTHON, item.name) for item in fields(Kernels) if item.name != "name"}
    twins = {
        name: getattr(modules[f"{function.__module__.rpartition('.')[2]}_c"], function.__name__)
        for name, function in functions.items()
        if function is not None
    }
    only_compiled = {
        "pack_batches": extensions.pack_c.pack_batches,
        "expand_batches": extensions.pack_c.expand_batches,
        "select": extensions.select_c.select_batches,
        "prepare_batches": extensions.prepare_c.prepare_batches,
        "prepare_records": extensions.encode_c.prepare_records,
    }
    return Kernels(name="compiled", **twins, **only_compiled)


COMPILED: Final = _load_compiled()
KERNELS: Final = COMPILED or PYTHON
