"""The loops over bytes, each in two forms that do the same: compiled, and pure Python where that could not be built.

Of each pair ``NAME.py`` is the reference and ``NAME_c.pyx`` its compiled twin; ``choice`` says which is in use.
``pack_c``, ``survey_c`` and ``pick_c`` alone have none: what they do in one pass the others do in two.
"""

from __future__ import annotations

from typing import Final

EXTENSIONS: Final = (
    "stratalog_formats.kernels.scan_c",
    "stratalog_formats.kernels.decode_c",
    "stratalog_formats.kernels.pack_c",
    "stratalog_formats.kernels.survey_c",
    "stratalog_formats.kernels.encode_c",
    "stratalog_formats.kernels.buffers_c",
    "stratalog_formats.kernels.retain_c",
    "stratalog_formats.kernels.pick_c",
    "stratalog_formats.kernels.search_c",
    "stratalog_formats.kernels.entries_c",
)
