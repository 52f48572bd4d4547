"""Script that CI runs with only the wheel and its dependencies.

It opens a local engine with every format, and checks errors that name missing extras. The argument is the
implementation of the kernels that must be in use: ``compiled`` or ``python``.
"""

from __future__ import annotations

import sys
import tempfile

import stratalog
from stratalog.errors import PluginImportError
from stratalog_formats.kernels.dispatch import KERNELS

if sys.argv[1:] != [KERNELS.name]:
    raise SystemExit(f"the kernels are {KERNELS.name}, wanted was {sys.argv[1:]}")

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")

with tempfile.TemporaryDirectory() as folder:
    with stratalog.open_engine(folder) as engine:
        for codec in CODECS:
            engine.create_topic(codec, config={"compression.type": codec})
            engine.log(codec, 0).append([stratalog.Record(key=codec.encode(), value=bytes(1000), timestamp_ms=1)])
    with stratalog.open_reader(folder) as reader:
        for codec in CODECS:
            [record] = reader.log(codec, 0).records()
            if (record.key, record.value) != (codec.encode(), bytes(1000)):
                raise SystemExit(f"{codec}: read {record}")
        try:
            reader.log("zstd", 0).to_arrow()
        except PluginImportError as error:
            if "stratalog[arrow]" not in str(error):
                raise SystemExit(f"the error does not name the extra: {error}") from error
        else:
            raise SystemExit("pyarrow is here: this is not the bare wheel")
