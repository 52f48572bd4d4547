"""Opening of a directory of an engine or of a Kafka broker, or of a tier alone, for reading."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from stratalog.config.engine_settings import EngineConfig
from stratalog.config.settings_sources import Settings, read_settings
from stratalog.env import Env
from stratalog.errors import ConfigError
from stratalog.model.arguments import checked
from stratalog.reading.component_host import ComponentHost, split_scheme
from stratalog.reading.directory_reader import DirectoryReader
from stratalog.reading.reader import Reader
from stratalog.reading.tier_reader import BucketReader
from stratalog.registry.registry import Registry
from stratalog.tier.manifest.history import AsOf
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier


@checked
def open_reader(
    location: str | os.PathLike[str],
    *,
    tier: str | None = None,
    tier_options: Mapping[str, object] | None = None,
    as_of: AsOf | None = None,
    config: str | os.PathLike[str] | Mapping[str, object] | None = None,
    plugins: Sequence[object] = (),
    env: Env | None = None,
) -> Reader:
    """Open logs for reading, without an engine.

    Nothing in the directory or the tier is locked, written, truncated or deleted. If the directory was not closed
    cleanly, the reader recovers the logs in memory only. In a forked child process, each use of the reader raises
    ClosedError.

    Args:
        location: a log directory (of an engine, or of a Kafka broker that has stopped or is running), or the URI of a
            tier, which is then read alone. With a relative path, do not change the working directory while the reader
            is open.
        tier: the tier behind a directory, for segments that are no longer local; ignored if ``location`` is a tier.
        tier_options: options for the library that accesses the store (credentials, endpoint); never logged.
        as_of: selects an earlier state of a tier that is read alone: a version of each log's manifest, or a timestamp
            with a time zone. A timestamp selects the newest state that was committed at or before it.
            ``tier.history.ms`` limits how long earlier states are kept. None selects the latest state.
        config: path of a ``stratalog.toml``, or its contents as a mapping; None reads the file that
            ``STRATALOG_CONFIG`` names, if any.
        plugins: modules with hooks, in addition to the installed plugins.
        env: clock, files and random numbers; None means those of the system.

    Raises:
        LogDirError: there is no such directory (LogDirNotFoundError), or it cannot be read.
        CorruptCheckpointError: a file of the directory that describes topics or logs is malformed.
        StoreError: the store of the tier cannot be read.
        UnknownComponentError: no installed plugin supports the URI's scheme.
        UnknownSettingError, ConfigError: ``config`` has an unknown or wrong setting, ``as_of`` is given for a
            directory (even with ``tier``), ``as_of`` has no time zone, ``tier`` is not a URI, ``tier_options`` has
            a wrong value, or ``tier.cache.dir`` is inside the directory that is read with ``tier``.
        PluginError: a plugin breaks the plugin interface, or a call into a plugin did not return within
            ``plugin.deadline.ms``.
    """
    text = os.fspath(location)
    return open_settled(
        text,
        read_settings(config, os.environ),
        tier=tier,
        tier_options=tier_options,
        as_of=as_of,
        plugins=plugins,
        env=env,
    )


def open_settled(
    text: str,
    settings: Settings,
    *,
    tier: str | None = None,
    tier_options: Mapping[str, object] | None = None,
    as_of: AsOf | None = None,
    plugins: Sequence[object] = (),
    env: Env | None = None,
    allow_offline: bool = False,
    other_paths: Sequence[str] = (),
    topics: Collection[str] | None = None,
) -> Reader:
    """Open logs like ``open_reader``, with the same errors, for callers that have parsed the settings already.

    ``open_reader`` documents the arguments that both functions have. ``text`` is the location of the directory or tier.

    If ``allow_offline`` is True, a directory is opened even if the store of its tier does not answer. The logs' start
    offsets are then those that local disk has, and reads of records that are only in the tier raise
    TierUnavailableError. ``other_paths`` are further log directories of the same engine. Of a tier that is read alone,
    only ``topics`` are shown, and only their objects are listed; None shows all topics.
    """
    if isinstance(as_of, datetime) and as_of.tzinfo is None:
        raise ConfigError(f"as_of={as_of!r} has no time zone: add tzinfo=datetime.UTC, for instance")
    host = open_host(settings, plugins, env)

    def open_location() -> Reader:
        with ExitStack() as after_error:
            after_error.enter_context(host)
            if is_tier(host, text):
                tier_alone = after_error.enter_context(open_tier(host, text, tier_options, read_only=True))
                reader: Reader = BucketReader(text, host, tier_alone, as_of, topics)
            else:
                if as_of is not None:
                    raise ConfigError("as_of needs a tier without a directory: give the tier's URI")
                tier_behind, paths = None, (text, *other_paths)
                if tier is not None:
                    check_cache_is_outside(settings.engine, paths)
                    tier_behind = open_tier(host, tier, tier_options, read_only=True, allow_offline=allow_offline)
                    after_error.enter_context(tier_behind)
                stores = [after_error.enter_context(host.segment_store(path, read_only=True)) for path in paths]
                reader = DirectoryReader(", ".join(paths), host, stores, tier_behind)
            after_error.pop_all()  # the reader closes everything
            return reader

    return host.open_in_time(open_location, Reader.close)


def is_tier(host: ComponentHost, text: str) -> bool:
    """Return True if ``text`` is the URI of a tier, not a path or the URI of a log directory.

    The result is also True if no installed plugin supports the scheme. Raises the errors of ``split_scheme``.
    """
    scheme, _ = split_scheme(text)
    registry = host.registry
    directories, objects = registry.segment_stores().schemes(), registry.object_stores().schemes()
    return bool(scheme) and (scheme in objects or scheme not in directories)


def open_tier(
    host: ComponentHost,
    uri: str,
    options: Mapping[str, object] | None,
    *,
    read_only: bool,
    allow_offline: bool = False,
) -> Tier:
    """Return the tier at a URI; the caller closes it. See ``Tier.open`` for ``allow_offline``.

    Raises:
        ConfigError: ``uri`` is a path without a scheme, or ``options`` has a wrong value.
        PluginError: no installed plugin supports the scheme (UnknownComponentError), or the store cannot be opened.
        StoreError: the store refused or failed.
    """
    store = open_tier_store(host, uri, options, read_only=read_only)
    return Tier.open(
        store,
        host.layouts,
        env=host.env,
        limits=host.settings.limits,
        config=host.settings.engine,
        read_only=read_only,
        allow_offline=allow_offline,
    )


def open_tier_store(
    host: ComponentHost, uri: str, options: Mapping[str, object] | None, *, read_only: bool
) -> TierStore:
    """Return the object store at a URI; the caller closes it. Raises the errors of ``open_tier``."""
    scheme, _ = split_scheme(uri)
    if not scheme:
        raise ConfigError(f"tier {uri!r} is not a URI: use a form like s3://bucket/prefix or file:///folder")
    catalogue = host.registry.object_stores()
    provider = catalogue.by_scheme(scheme)
    store = catalogue.open(provider, host.opener.context(provider, location=uri, options=options, read_only=read_only))
    return TierStore(store, host.env, host.settings.engine, host.settings.limits, catalogue.guard(provider))


def check_cache_is_outside(config: EngineConfig, log_dirs: Iterable[str]) -> None:
    """Raise ConfigError if the setting ``tier.cache.dir`` names a log directory, or a folder inside a log directory."""
    if config.tier_cache_dir is not None:
        for log_dir in log_dirs:
            check_is_outside(f"tier.cache.dir {config.tier_cache_dir}", config.tier_cache_dir, log_dir)


def check_is_outside(place: str, folder: str, log_dir: str) -> None:
    """Raise ConfigError if a folder is a log directory, or inside a log directory. ``place`` begins the error text.

    A symbolic link inside the log directory to a folder outside of it is also an error.
    """
    path = Path(os.path.abspath(folder))  # noqa: PTH100 - Path.resolve would follow links
    outer = Path(log_dir.removeprefix("file://")).resolve()
    if any(part.resolve().is_relative_to(outer) for part in (Path(folder), path, *path.parents)):
        raise ConfigError(
            f"{place} is inside the log directory {log_dir}: use a folder outside of it, because a broker does not "
            "start if a log directory contains folders that are not logs"
        )


def open_host(settings: Settings, plugins: Sequence[object] = (), env: Env | None = None) -> ComponentHost:
    """Load the plugins and return a host that opens their components; the caller closes the host.

    ``env`` None means the clock, files and random numbers of the system.

    Raises:
        PluginError: one of ``plugins`` or of ``plugins.modules`` cannot be loaded.
        ConfigError: a setting of a plugin is wrong.
    """
    return ComponentHost(Registry.of(settings, plugins), settings, env or Env())
