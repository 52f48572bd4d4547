"""For each kind of note in a log's folder: a note that could not be read back is never written."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import StorageError
from stratalog.log.folder.directory_state import read_topic_id, store_topic_id
from stratalog.log.folder.folder import store_epochs, store_snapshot, write_epochs, write_next_epoch
from stratalog.log.folder.tier_note import TierNote, read_note, write_note
from stratalog.log.folder.write_rounds import Pending, begin_round, read_marks
from stratalog.model.names import LEADER_EPOCHS_FILE, TopicId
from stratalog.model.offsets import EpochEntry
from stratalog.producers.snapshot import ProducerEntry
from stratalog.spi.segment_store import LogFiles

TOPIC_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")


class SmallFiles:
    """The small files of a folder, in memory."""

    def __init__(self) -> None:
        self.there = dict[str, bytes]()

    def path(self, name: str = "") -> str:
        return f"/log/{name}"

    def read_small(self, name: str) -> bytes | None:
        return self.there.get(name)

    def replace_small(self, name: str, data: bytes) -> None:
        self.there[name] = data


@pytest.fixture
def files() -> Any:
    return SmallFiles()


@pytest.mark.parametrize(
    "write",
    [
        lambda files, number: write_epochs(files, EpochCache((EpochEntry(0, 0), EpochEntry(1, number)))),
        lambda files, number: store_epochs(files, LEADER_EPOCHS_FILE, [EpochEntry(number, 0)]),
        lambda files, number: write_next_epoch(files, 3, number),
        lambda files, number: write_note(files, TierNote(version=1, log_start=number)),
        lambda files, number: write_note(files, TierNote(leader_epochs=(EpochEntry(0, number),))),
        lambda files, number: begin_round(files, Pending("w", 1, number, 20)),
        lambda files, number: begin_round(files, Pending("w", number, 0, 20)),
    ],
)
@pytest.mark.parametrize("wrong", [15.0, True])
def test_a_number_that_cannot_be_read_back_is_not_stored(
    write: Callable[[Any, Any], None], wrong: Any, files: SmallFiles
) -> None:
    write(files, 15)
    before = dict(files.there)
    with pytest.raises(StorageError, match="a note was not stored, because it could not be read back"):
        write(files, wrong)
    assert files.there == before


def test_a_topic_id_that_cannot_be_read_back_is_not_stored(files: SmallFiles) -> None:
    store_topic_id(cast(LogFiles, files), TOPIC_ID)
    with pytest.raises(StorageError, match="a note was not stored"):
        store_topic_id(cast(LogFiles, files), cast(TopicId, "none"))
    assert read_topic_id(cast(LogFiles, files)) == TOPIC_ID


def test_a_stored_note_is_read_as_it_was_written(files: SmallFiles) -> None:
    folder = cast(LogFiles, files)
    note = TierNote(1, 2, 3, 4, 5, 6, (EpochEntry(0, 2),))
    write_note(folder, note)
    assert read_note(folder) == note
    begin_round(folder, Pending("w", 1, 10, 20))
    assert read_marks(folder).pending == Pending("w", 1, 10, 20)
    store_snapshot(folder, 7, [ProducerEntry(5, last_offset=6)])
    assert "00000000000000000007.snapshot" in files.there
