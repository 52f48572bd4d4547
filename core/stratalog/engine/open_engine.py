"""``open_engine``, which creates an engine from settings, plugins, a tier and log directories."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from stratalog.config.engine_settings import EngineConfig
from stratalog.config.settings_sources import Settings, read_settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.engine import Engine
from stratalog.engine.open.offline_tier import refusal
from stratalog.engine.tiering.attach_tier import Attach
from stratalog.env import Env
from stratalog.env.progress import Progress, ProgressSum
from stratalog.errors import ConfigError, StoreError
from stratalog.errors.system import log_dir_error
from stratalog.model.arguments import checked
from stratalog.reading.component_host import ComponentHost, split_scheme
from stratalog.reading.open_reader import check_cache_is_outside, check_is_outside, open_host, open_tier
from stratalog.tier.tier import Tier

PathLike = str | os.PathLike[str]


@checked
def open_engine(
    log_dirs: PathLike | Sequence[PathLike] | None = None,
    *,
    tier: str | None = None,
    tier_options: Mapping[str, object] | None = None,
    config: PathLike | Mapping[str, object] | None = None,
    plugins: Sequence[object] = (),
    topic_defaults: Mapping[str, object] | None = None,
    env: Env | None = None,
    attach: bool | Collection[str] = False,
    progress: Progress | None = None,
) -> Engine:
    """Open new log directories, or log directories of an engine or a stopped Kafka broker, for reading and writing.

    Every log is loaded. If the last writer did not stop cleanly, the logs are recovered. In a forked child process,
    each use of the engine raises ClosedError, and ``close`` does nothing.

    Args:
        log_dirs: one or several directories, created if missing; None uses ``log.dirs`` of ``config``. If some of
            several directories cannot be opened, the engine serves the other directories. With a relative path, do not
            change the working directory while the engine is open.
        tier: URI of the tier (object store, bucket and prefix for closed segments); None uses ``tier`` of ``config``.
        tier_options: options for the client library of the store (credentials), and settings of its plugin by their
            names (``endpoint_url``, ``region``, ``allow_http``), which override ``[plugins.s3]``. The options are
            never logged or stored.
        config: a ``stratalog.toml``, or its contents as a mapping. ``STRATALOG_*`` variables override ``config``, and
            arguments override the variables. None reads the file that ``STRATALOG_CONFIG`` names, or no file if the
            variable is not set.
        plugins: modules with hooks, in addition to the installed plugins.
        topic_defaults: default topic settings, which the settings of a topic override.
        env: clock, files and random source; the real ones if None.
        attach: True to take over all topics of the tier, or names of topics to take over, into directories without
            logs. Each log continues at the end offset of its tier, in the next leader epoch, which fences the previous
            engine. Records that the previous engine had not offloaded are missing. If the tier has several topics with
            the same name, use ``TOPIC-ID``. An interrupted attach can be repeated.
        progress: called during the recovery after an unclean stop with the bytes that were scanned, and during an
            attach with the sizes of the logs that were taken over.

    Raises:
        AttachError: without ``attach``, a directory has an unfinished attach or restore. With ``attach``, a directory
            is not empty, or the tier has no topic or several topics with a name in ``attach``.
        LogDirError, CorruptCheckpointError: no directory can be opened; or the first directory cannot be opened, and no
            other directory has the topics' settings. With ``attach``, one directory that cannot be opened is enough.
        LogDirLockedError: another engine or a running broker has locked a directory.
        SystemLimitError: the process has too many open files.
        ConfigError, UnknownSettingError: a setting is wrong.
        TierUnavailableError: the store is unavailable, and the engine must not open without it. The reason is
            ``tier.outage.open``, ``attach``, or that the directories were never opened with this tier.
        StoreError: the store refused a request or failed.
        StorageError: the attach failed, for example with CorruptionError (a log is damaged in the tier), or with
            FencedEpochError (another process takes over a log at the same time).
        PluginError: a plugin is missing or wrong, or a call into it has not returned within ``plugin.deadline.ms``.
    """
    settings = engine_settings(log_dirs, tier, config, topic_defaults)
    attach_request = _attach(attach, progress, settings)
    return open_settled_engine(settings, plugins, env, tier_options, progress, attach_request)


def open_settled_engine(
    settings: Settings,
    plugins: Sequence[object] = (),
    env: Env | None = None,
    tier_options: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    attach: Attach | None = None,
) -> Engine:
    """Open an engine with the result of ``engine_settings``. ``open_engine`` describes the arguments and errors."""
    host = open_host(settings, plugins, env)
    work = partial(_open, host, settings, tier_options, progress, attach)
    locked = ": the log directories stay locked until the call returns, or the process ends"
    return host.open_in_time(work, Engine.close, locked)


def _open(
    host: ComponentHost,
    settings: Settings,
    tier_options: Mapping[str, object] | None,
    progress: Progress | None,
    attach: Attach | None,
) -> Engine:
    opened_tier = None
    try:
        if settings.engine.tier is not None:
            opened_tier = _open_tier(host, settings.engine, tier_options, attaches=attach is not None)
        return Engine(host, opened_tier, ProgressSum(progress), attach=attach)
    except BaseException:
        if opened_tier is not None:
            opened_tier.close()
        host.close()
        raise


def _open_tier(
    host: ComponentHost, settings: EngineConfig, options: Mapping[str, object] | None, *, attaches: bool
) -> Tier:
    assert settings.tier is not None
    reason = ""
    if attaches:
        reason = "only the tier knows the end of the logs that are taken over"
    elif settings.tier_outage_open == "refuse":
        reason = "tier.outage.open is refuse: set it to serve, or wait for the store"
    try:
        return open_tier(host, settings.tier, options, read_only=False, allow_offline=not reason)
    except StoreError as error:
        if not error.retriable:
            raise
        raise refusal(error, reason) from error


def _attach(attach: bool | Collection[str], progress: Progress | None, settings: Settings) -> Attach | None:  # noqa: FBT001 - as open_engine has it
    if attach is False:
        return None
    if settings.engine.tier is None:
        raise ConfigError("attach needs a tier: set tier to its URI")
    return Attach(None if attach is True else tuple(attach), progress)


def engine_settings(
    log_dirs: PathLike | Sequence[PathLike] | None,
    tier: str | None,
    config: PathLike | Mapping[str, object] | None,
    topic_defaults: Mapping[str, object] | None = None,
) -> Settings:
    """Return the settings of an engine. ``open_engine`` describes the arguments and errors."""
    settings = read_settings(config, os.environ)
    values: dict[str, object] = {}
    if log_dirs is not None:
        paths = [log_dirs] if isinstance(log_dirs, str | os.PathLike) else list(log_dirs)
        values["log.dirs"] = [os.fspath(path) for path in paths]
    if tier is not None:
        values["tier"] = tier
    engine = settings.engine.replaced(values, "open_engine")
    if not engine.log_dirs:
        raise ConfigError("no log directory is configured: set log.dirs to a directory")
    _check_places(engine.log_dirs)
    if engine.tier is not None:
        check_tier_is_outside(engine.tier, engine, engine.log_dirs)
    defaults = {**settings.topic_defaults, **(topic_defaults or {})}
    built_in = TopicConfig()  # the settings of plugins are checked when the plugins are loaded
    built_in.replaced(built_in.known(defaults), "topic_defaults")
    return dataclasses.replace(settings, engine=engine, topic_defaults=defaults)


def _check_places(log_dirs: Sequence[str]) -> None:
    """Raise ConfigError if two paths lead to the same directory, or if a directory is inside another directory."""
    places = [_real_path(path) for path in log_dirs]
    for index, place in enumerate(places):
        for earlier, path in zip(places[:index], log_dirs, strict=False):
            if place == earlier:
                raise ConfigError(f"a log directory is given twice: {path} and {log_dirs[index]}")
            if place.is_relative_to(earlier) or earlier.is_relative_to(place):
                raise ConfigError(f"one log directory is inside another: {path} and {log_dirs[index]}")


def _real_path(log_dir: str) -> Path:
    try:
        return Path(os.path.realpath(log_dir.removeprefix("file://")))
    except OSError as error:  # the working directory was deleted
        raise log_dir_error(error, log_dir) from error


def check_tier_is_outside(tier: str, config: EngineConfig, log_dirs: Sequence[str]) -> None:
    """Raise ConfigError if a tier or its cache, ``tier.cache.dir``, is a log directory, or inside a log directory."""
    scheme, folder = split_scheme(tier)
    if scheme == "file":
        for log_dir in log_dirs:
            check_is_outside(f"the tier {tier}", folder.removeprefix("localhost"), log_dir)
    check_cache_is_outside(config, log_dirs)
