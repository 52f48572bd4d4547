"""Loops over bytes. Each loop exists compiled, and in pure Python for systems without the compiled extensions.

``NAME.py`` is the module in pure Python, and ``NAME_c.pyx`` the compiled module with the same functions. ``dispatch``
selects all compiled modules, or all modules in pure Python. ``pack_c``, ``prepare_c`` and ``select_c`` exist only
compiled. Without them, callers use slower functions of other modules.
"""

from __future__ import annotations

from typing import Final

EXTENSIONS: Final = (
    "stratalog_formats.kernels.scan_c", "stratalog_formats.kernels.decode_c", "stratalog_formats.kernels.pack_c",
    "stratalog_formats.kernels.prepare_c", "stratalog_formats.kernels.encode_c", "stratalog_formats.kernels.buffers_c",
    "stratalog_formats.kernels.retain_c", "stratalog_formats.kernels.select_c", "stratalog_formats.kernels.search_c",
    "stratalog_formats.kernels.entries_c", "stratalog_formats.kernels.rebuild_c", "stratalog_formats.kernels.bloom_c",
)  # fmt: skip
