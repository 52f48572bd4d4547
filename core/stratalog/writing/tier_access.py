"""Access of a bulk writer to a tier: its topics, its logs, and the targets of writes to them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache, partial

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors.system import log_dir_error
from stratalog.log.load.tier_producers import producers_at
from stratalog.model.names import TopicPartition, random_uuid
from stratalog.producers.snapshot import encode_snapshot
from stratalog.reading.component_host import ComponentHost
from stratalog.segment.components import Components
from stratalog.spi.segment_store import LogFiles, SegmentStore
from stratalog.tier.commit.append_change import check_single_writer
from stratalog.tier.manifest.root import Root
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.writing.column_encoder import Encoder
from stratalog.writing.tier_target import TierTarget
from stratalog.writing.tier_topics import TierTopics


class TierAccess:
    """A tier that is open for bulk writes.

    Args:
        host: opens components; closed with this object.
        tier: the tier; closed with this object.
        staging: folder in which a folder for temporary files is created; None for the system's temporary folder.
        take_over: True to write to logs whose last writer was an engine.

    Attributes:
        topics: topics of the tier.
        take_over: True to write to logs whose last writer was an engine.
    """

    def __init__(self, host: ComponentHost, tier: Tier, *, staging: str | None, take_over: bool) -> None:
        self.host, self.tier, self.take_over, self._staging = host, tier, take_over, staging
        self.topics = TierTopics(host, tier)
        self._resources = ExitStack()
        self._resources.callback(host.close)
        self._resources.enter_context(tier)
        self._temporary: SegmentStore | None = None
        self._lock = threading.Lock()  # held while _temporary is created

    def log(self, name: TopicPartition) -> TierLog:
        """Return a log in its newest state; raise UnknownTopicError if it does not exist."""
        remote = self.topics.log(name)
        remote.refresh()
        return remote

    def single_writer_epoch(self, root: Root | None) -> int:
        """Return the leader epoch for writes to a log with this root; raise FencedEpochError if an engine may write."""
        return check_single_writer(root, take_over=self.take_over)

    def target(
        self,
        remote: TierLog,
        compression: str | None = None,
        *,
        keep_offsets: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> TierTarget:
        """Return the target of writes to a log. ``settings`` override settings of the topic.

        Raises:
            ConfigError: the codec ``compression`` does not exist.
            FencedEpochError: an engine may be writing to the log.
        """
        log = remote.name
        root, config = remote.root, self.topics.get(log.topic).config.replaced(settings or {}, "settings")
        components = self.host.components(config)
        # an engine may own a partition without having uploaded anything of it yet
        known_root = root if root is not None else self.topics.get(log.topic).root
        epoch = self.single_writer_epoch(known_root)
        epochs = EpochCache(root.leader_epochs if root is not None else ())
        if not keep_offsets or not epochs.entries:
            epochs = epochs.assign(epoch, root.end_offset if root is not None else 0)
        snapshot = None if keep_offsets else cache(partial(_snapshot, remote, components))
        encoder = Encoder.of(components, config, compression)
        publisher = TierPublisher(remote, epoch, encoder.config)
        return TierTarget(publisher, encoder, epochs, snapshot, cache(self._new_folder))

    def _new_folder(self) -> LogFiles:
        """Create a folder for temporary files, which is removed when this object is closed. Thread-safe."""
        with self._lock:
            if self._temporary is None:
                parent = self._staging
                try:
                    parent = parent or tempfile.gettempdir()
                    folder = tempfile.TemporaryDirectory(prefix="stratalog-", dir=parent, ignore_cleanup_errors=True)
                except OSError as error:
                    dir_error = log_dir_error(error, parent or "the system's temporary folder")
                    raise dir_error.advised("stage in a writable folder with free space") from error
                path = self._resources.enter_context(folder)
                self._temporary = self._resources.enter_context(self.host.segment_store(path, read_only=False))
                self._temporary.acquire()
            name = random_uuid(self.host.env.chance).hex
            return self._temporary.open_log(name, create=True)

    def close(self) -> None:
        """Close the tier and remove the temporary files. Later calls do nothing."""
        self._resources.close()


def _snapshot(remote: TierLog, components: Components) -> bytes:
    """Return the encoded producers' state at the tier's end, for new segments. Bulk writes add no producers."""
    view = remote.view()
    return encode_snapshot(producers_at(view, view.end_offset, components).entries())
