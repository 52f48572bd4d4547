"""Checks of a plugin's segment store before recovery truncates its files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from log_bed import LogBed
from stratalog.errors import PluginError
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import guarded_part
from stratalog.segment.file_chunks import check_listed, check_same_bytes, check_sizes
from stratalog.segment.segment import Segment
from stratalog.spi.segment_store import LogFiles

GUARD = Guard("segment store 'odd' version 1", "plugin odd of odd-stores 2.1")
NAME = "00000000000000000000.log"
INDEX = "00000000000000000000.index"


@pytest.fixture
def files(bed: LogBed) -> LogFiles:
    """Return the folder of a plugin's store with one segment of 4 bytes."""
    bed.write_segment(0, [b"abcd"])
    return guarded_part(bed.files(), LogFiles, GUARD)


def test_a_sound_folder_passes(bed: LogBed, files: LogFiles) -> None:
    with closing(Segment(files, 0, 1, bed.components, files.open_segment(NAME))) as segment:
        check_listed(files, [NAME, INDEX])
        check_sizes(files, [segment])
        check_same_bytes(segment.file, 0)


def test_a_list_without_the_log_of_an_index_is_refused(files: LogFiles) -> None:
    check_listed(files, ["00000000000000000007.index"])  # a crash may leave an index without its log
    with pytest.raises(PluginError, match=rf"odd-stores 2\.1\): list leaves out {NAME}"):
        check_listed(files, [INDEX])


def test_a_file_of_another_size_than_listed_is_refused(bed: LogBed, files: LogFiles) -> None:
    with closing(Segment(files, 0, 1, bed.components, files.open_segment(NAME))) as segment:
        Path(files.path(NAME)).write_bytes(b"abcdefgh")
        with pytest.raises(
            PluginError, match=rf"odd-stores 2\.1\): open_segment opened {NAME} with 4 bytes, but list has 8"
        ):
            check_sizes(files, [segment])


def test_a_file_with_bytes_after_its_size_is_refused(files: LogFiles) -> None:
    refusal = r"odd-stores 2\.1\): size_bytes is 3, but read returned another number"
    with (
        closing(files.open_segment(NAME)) as log,
        patch.object(type(log), "size_bytes", 3),
        pytest.raises(PluginError, match=refusal),
    ):
        check_same_bytes(log, 0)
