"""Description of the target of a bulk write, as one value that can be sent to other processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.config.settings_sources import Settings, read_settings
from stratalog.env import Env
from stratalog.model.arguments import checked
from stratalog.reading.component_host import split_scheme
from stratalog.writing.bulk_writer import BulkWriter
from stratalog.writing.directory_writer import DirectoryWriter
from stratalog.writing.tier_writer import TierWriter


@checked
@dataclass(frozen=True, slots=True)
class WriteTarget:
    """A log directory or a tier as the target of a bulk write, with the options to open it. Can be pickled.

    ``tier_options`` may contain credentials. The pickled value contains these credentials, but the ``repr`` does not.

    Attributes:
        location: path of a directory whose engine is not running, or URI of a tier to which no engine writes.
        tier_options: options for the client library of the store.
        config: a ``stratalog.toml``, or its contents as a mapping; None for the file that STRATALOG_CONFIG names, if
            any.
        staging: for a tier: folder on local disk for temporary files; None for the system's temporary folder. The
            staged files of a directory are in the directory: the driver must be able to read the files of all tasks.
        take_over: for a tier: True to write to logs whose last writer was an engine. The write fences that engine. Use
            it only after that engine has stopped.
    """

    location: str
    tier_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    config: str | Mapping[str, object] | None = None
    staging: str | None = None
    take_over: bool = False

    @property
    def is_tier(self) -> bool:
        """True if ``location`` is a URI, and so the target is a tier."""
        return bool(split_scheme(self.location)[0])

    def settings(self) -> Settings:
        """Return the settings of ``config`` and this process's environment; raise the errors of ``read_settings``."""
        return read_settings(self.config, os.environ)

    def open(self, *, env: Env | None = None) -> BulkWriter:
        """Open the target in a task or in the publishing process. Close the result, or use it as a context manager.

        Raises:
            StoreError, LogDirError: the tier or the directory cannot be used.
            PluginError: no plugin serves the URI, or a plugin cannot be used.
            UnknownSettingError, ConfigError: the configuration is wrong.
        """
        if self.is_tier:
            return TierWriter.open(
                self.location,
                self.settings(),
                self.tier_options,
                staging=self.staging,
                take_over=self.take_over,
                env=env or Env(),
            )
        return DirectoryWriter.open(self.location, self.config, self.tier_options, env=env or Env())
