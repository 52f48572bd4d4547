"""``open_engine``: settings, plugins, tier and log directories become an engine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stratalog.config.engine_settings import EngineConfig
from stratalog.config.settings_sources import Settings, read_settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.engine import Engine
from stratalog.engine.open.log_loading import LogProgress
from stratalog.engine.open.offline_tier import refusal
from stratalog.engine.tiering.attach_tier import Attach, AttachProgress
from stratalog.env import Env
from stratalog.errors import ConfigError, StoreError
from stratalog.model.arguments import checked
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host, open_tier
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
    recovery_progress: LogProgress | None = None,
    attach: bool | Collection[str] = False,
    attach_progress: AttachProgress | None = None,
) -> Engine:
    """Open log directories for reading and writing: new ones, an engine's, or what a stopped Kafka broker left.

    Every log is loaded, and recovered if the last writer did not stop in order. The engine belongs to this process: in a
    forked child each use of it raises ClosedError, and ``close`` does nothing.

    Args:
        log_dirs: one or several directories, made if missing; None takes ``log.dirs`` of ``config``. If some of several
            cannot be opened, the engine serves the others; if none can be opened, the first one's error is raised.
        tier: URI of the object store and prefix for closed segments.
        tier_options: options for the library that talks to the store (credentials), and settings of its plugin by their
            names (``endpoint_url``, ``region``, ``allow_http`` of ``[plugins.s3]``), which win; never logged or stored.
        config: a ``stratalog.toml``, or its contents as a mapping. Arguments win over ``STRATALOG_*`` variables, which
            win over it. None reads the file that ``STRATALOG_CONFIG`` names, and no file if the variable is not set: a
            file in the working directory is for commands alone.
        plugins: modules with hooks, beside the installed ones.
        topic_defaults: topic settings that hold unless a topic says otherwise.
        env: clock, files and chance; the real ones if None.
        recovery_progress: called while logs are recovered after an unclean stop, on the threads that do it: with the log,
            how many bytes have been looked at, and of how many.
        attach: take over every topic of the tier (True), or some, into directories without logs: each log goes on where
            its tier ends, in the next leader epoch, and the engine before is fenced. What that had not moved to the tier
            is not known here. A topic that the tier has under several ids is named ``TOPIC-ID``. What was interrupted can
            be repeated. ``engine.attached`` tells what was taken over.
        attach_progress: called while that is done, with the log that is done, how many are, and of how many.

    Raises:
        AttachError: a directory is not empty, or was left by an attach that was interrupted.
        LogDirError, CorruptCheckpointError: no directory can be opened, or the first one cannot and no other one knows the
            settings of its topics.
        LogDirLockedError: another engine or a running broker has a directory.
        ConfigError, UnknownSettingError: a setting is wrong.
        TierUnavailableError: the store is away, and the engine must not open without: ``tier.outage.open`` says so, the
            directories were never opened with this tier, or ``attach`` is wanted.
        StoreError, UnknownComponentError: the tier cannot be opened.
    """
    settings = _settings(log_dirs, tier, config, topic_defaults)
    wanted = _attach(attach, attach_progress, settings)
    host = open_host(settings, plugins, env)
    opened = None
    try:
        if settings.engine.tier is not None:
            opened = _open_tier(host, settings.engine, tier_options, attaches=wanted is not None)
        return Engine(settings, host, opened, recovery_progress, attach=wanted)
    except BaseException:
        if opened is not None:
            opened.close()
        host.close()
        raise


def _open_tier(
    host: ComponentHost, settings: EngineConfig, options: Mapping[str, object] | None, *, attaches: bool
) -> Tier:
    assert settings.tier is not None
    reason = ""
    if attaches:
        reason = "only the tier knows where logs go on that are taken over from it"
    elif settings.tier_outage_open == "refuse":
        reason = "tier.outage.open=refuse says so: wait for the store, or set it to serve"
    try:
        return open_tier(host, settings.tier, options, read_only=False, may_be_away=not reason)
    except StoreError as error:
        if not error.retriable:
            raise
        raise refusal(error, reason) from error


def _attach(attach: bool | Collection[str], progress: AttachProgress | None, settings: Settings) -> Attach | None:  # noqa: FBT001 - as open_engine has it
    if attach is False:
        return None
    if settings.engine.tier is None:
        raise ConfigError("attach takes over what is in a tier: open_engine(tier=URI), or tier in the settings")
    return Attach(None if attach is True else tuple(attach), progress)


def _settings(
    log_dirs: PathLike | Sequence[PathLike] | None,
    tier: str | None,
    config: PathLike | Mapping[str, object] | None,
    topic_defaults: Mapping[str, object] | None,
) -> Settings:
    settings = read_settings(config, os.environ)
    values: dict[str, object] = {}
    if log_dirs is not None:
        listed = [log_dirs] if isinstance(log_dirs, str | os.PathLike) else list(log_dirs)
        values["log.dirs"] = [os.fspath(path) for path in listed]
    if tier is not None:
        values["tier"] = tier
    engine = settings.engine.replaced(values, "open_engine")
    if not engine.log_dirs:
        raise ConfigError(
            "say where the logs are: open_engine(DIRECTORY), --dir DIRECTORY, or log.dirs in the settings"
        )
    _check_places(engine.log_dirs)
    defaults = {**settings.topic_defaults, **(topic_defaults or {})}
    plain = TopicConfig()  # what plugins have is known when they are loaded
    plain.replaced(plain.known(defaults), "topic_defaults")
    return dataclasses.replace(settings, engine=engine, topic_defaults=defaults)


def _check_places(log_dirs: Sequence[str]) -> None:
    """Raise ConfigError if a directory is named twice, whatever the names, or lies in another one."""
    places = [Path(os.path.realpath(path.removeprefix("file://"))) for path in log_dirs]
    for index, place in enumerate(places):
        for other, path in zip(places[:index], log_dirs, strict=False):
            if place == other:
                raise ConfigError(f"a log directory is named twice: {path} and {log_dirs[index]}")
            if place.is_relative_to(other) or other.is_relative_to(place):
                raise ConfigError(f"of two log directories one lies in the other: {path} and {log_dirs[index]}")
