"""Loops over bytes, each in two equivalent forms: compiled, and pure Python for systems without the extension.

``NAME.py`` is the reference, and ``NAME_c.pyx`` its compiled twin; ``choice`` selects one. ``pack_c``, ``prepare_c`` and
``select_c`` have no twin: each does in one pass what other functions do in two.
"""

from __future__ import annotations

from typing import Final

EXTENSIONS: Final = (
    "stratalog_formats.kernels.scan_c",
    "stratalog_formats.kernels.decode_c",
    "stratalog_formats.kernels.pack_c",
    "stratalog_formats.kernels.prepare_c",
    "stratalog_formats.kernels.encode_c",
    "stratalog_formats.kernels.buffers_c",
    "stratalog_formats.kernels.retain_c",
    "stratalog_formats.kernels.select_c",
    "stratalog_formats.kernels.search_c",
    "stratalog_formats.kernels.entries_c",
    "stratalog_formats.kernels.rebuild_c",
    "stratalog_formats.kernels.bloom_c",
)
