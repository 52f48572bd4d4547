"""Discovery of installed plugins. Entry points are found and filtered without an import, then imported one by one.

The name of the entry-point group contains the major version of the plugin interface. Therefore plugins for another
version are never imported.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from stratalog.errors import PluginClashError, PluginError, PluginImportError
from stratalog.spi.hooks import CONTRACT_GROUP, PROJECT

_SEPARATORS = re.compile(r"[-_.]+")
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")
_REQUIRED_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry point of an installed plugin, found in metadata. ``load`` imports the plugin.

    Attributes:
        name: name of the entry point; settings allow and block it by this name, or by ``distribution:name``.
        distribution: name of the installed distribution with the entry point, "" if its metadata is broken.
    """

    name: str
    distribution: str
    version: str
    entry_point: importlib.metadata.EntryPoint = field(repr=False, compare=False)

    def load(self) -> object:
        """Import the plugin, and return its module or object.

        Raises:
            PluginImportError: the import raised an ImportError. The text names the package to install, if known.
            PluginError: the import raised an exception other than ImportError.
        """
        try:
            return self.entry_point.load()
        except ImportError as error:
            raise self.import_failure(error) from error
        except PluginError:
            raise
        except Exception as error:  # a plugin may raise anything
            raise PluginError(f"importing plugin {self.name!r} of {self.distribution} raised {error!r}") from error

    def import_failure(self, error: ImportError) -> PluginImportError:
        """Return the PluginImportError for an ImportError of this plugin, with the package to install, if known."""
        root = missing_module(error)
        return PluginImportError(str(error), self.name, self._package_to_install(root) if root else "")

    def _package_to_install(self, root: str) -> str:
        if root == self.entry_point.module.partition(".")[0]:
            return self.distribution  # the plugin's own files are missing: the distribution must be installed again
        distribution = self.entry_point.dist
        requirements = (distribution.requires or []) if distribution is not None else []
        return install_hint(self.distribution, requirements, root)


def missing_module(error: ImportError) -> str:
    """Return the top-level module that is not installed; "" if the import failed in an installed module."""
    return (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""


def install_hint(distribution: str, requirements: Iterable[str], module: str) -> str:
    """Return the package to install for a missing ``module``, from the metadata of the distribution that needs it.

    ``requirements`` are the distribution's ``Requires-Dist`` lines. ``module`` is a top-level module.

    Returns:
        The requirement with the module's name. If this requirement belongs to extras, ``distribution[extra]`` for the
        extra with the fewest requirements. "" if no requirement has the module's name.
    """
    extras: dict[str, int] = Counter()
    extra_names: list[str] = []
    for line in requirements:
        required_name = _REQUIRED_NAME.match(line)
        required, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if extra:
            extras[extra[1]] += 1
        if required_name and _normalize(required_name[1]) == _normalize(module):
            if not extra:
                return required.strip()
            extra_names.append(extra[1])
    return f"{distribution}[{min(extra_names, key=lambda name: (extras[name], name))}]" if extra_names else ""


def find_candidates(group: str = CONTRACT_GROUP) -> tuple[Candidate, ...]:
    """Return the installed plugins of an entry-point group, sorted by name. Reads metadata, and imports no plugin."""
    entry_points = importlib.metadata.entry_points(group=group)
    distributions = {id(entry_point.dist): entry_point.dist for entry_point in entry_points}
    owners = {key: _owner(distribution) for key, distribution in distributions.items()}  # parse metadata once
    candidates = [
        Candidate(entry_point.name, *owners[id(entry_point.dist)], entry_point) for entry_point in entry_points
    ]
    return tuple(sorted(candidates, key=lambda candidate: (candidate.name, candidate.distribution)))


def _owner(distribution: importlib.metadata.Distribution | None) -> tuple[str, str]:
    """Return the name and the version of a distribution; both are "" if it has no metadata."""
    if distribution is None:
        return "", ""
    try:
        metadata = distribution.metadata
    except (OSError, TypeError):  # a folder without METADATA; the type of error depends on Python's version
        return "", ""
    fields = set(metadata)  # from Python 3.12 on, the access to a missing field is a warning
    return metadata["Name"] if "Name" in fields else "", metadata["Version"] if "Version" in fields else ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The installed plugins, divided by the settings ``plugins.allow`` and ``plugins.block``.

    Attributes:
        to_import: allowed plugins with a unique name.
        blocked: plugins that are blocked or not allowed. They are not imported.
        ambiguous: allowed plugins with a name that several distributions use. They are not imported.
        missing: names in ``plugins.allow`` that are not installed.
    """

    to_import: tuple[Candidate, ...]
    blocked: tuple[Candidate, ...]
    ambiguous: tuple[Candidate, ...]
    missing: tuple[str, ...]


def select(candidates: Collection[Candidate], allow: Collection[str], block: Collection[str]) -> Selection:
    """Divide the installed plugins by the settings ``allow`` and ``block``. No plugin is imported.

    Both contain names, or ``distribution:name``. If ``allow`` is not empty, only its plugins are imported. A blocked
    plugin is not imported even if it is allowed.
    """
    allowed_names, blocked_names = ({_normalize_entry(name) for name in names} for names in (allow, block))
    permitted, blocked = list[Candidate](), list[Candidate]()
    for candidate in candidates:
        names = {candidate.name, f"{_normalize(candidate.distribution)}:{candidate.name}"}
        (blocked if names & blocked_names or (allowed_names and not names & allowed_names) else permitted).append(
            candidate
        )
    uses = Counter(candidate.name for candidate in permitted)
    known_names = {_normalize_entry(f"{candidate.distribution}:{candidate.name}") for candidate in candidates}
    known_names |= {candidate.name for candidate in candidates}
    return Selection(
        tuple(candidate for candidate in permitted if uses[candidate.name] == 1),
        tuple(blocked),
        tuple(candidate for candidate in permitted if uses[candidate.name] > 1),
        tuple(sorted(name for name in allow if _normalize_entry(name) not in known_names)),
    )


def ambiguity(candidate: Candidate, candidates: Iterable[Candidate]) -> PluginClashError:
    """Return the error for a plugin whose name several distributions use; the text lists the distributions."""
    owners = sorted(f"{owner.distribution} {owner.version}" for owner in candidates if owner.name == candidate.name)
    return PluginClashError(
        f"entry point {candidate.name!r} is in {' and in '.join(owners)}: uninstall one, or add "
        f"'distribution:{candidate.name}' to plugins.block"
    )


def import_named(module: str) -> object:
    """Import and return a plugin module. ``module`` is its name, from ``plugins.modules`` or from a caller.

    Raises:
        PluginImportError: no module has this name, or an import in the module failed.
        PluginError: the import raised an exception other than ImportError.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _explain_import(module, error) from error
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"importing plugin module {module!r} raised {error!r}") from error


def _explain_import(module: str, error: ImportError) -> PluginImportError:
    missing = error.name or ""
    if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{missing}."):
        return PluginImportError(f"plugin module {module!r} cannot be imported: {error}", module, bundled_hint(error))
    similar = difflib.get_close_matches(missing, _module_names(missing), n=3)
    hint = f"; did you mean {' or '.join(repr(name) for name in similar)}?" if similar else ""
    return PluginImportError(f"there is no module {missing!r}: correct plugins.modules{hint}", module)


def _module_names(missing: str) -> list[str]:
    """Return the names of the modules in the package of ``missing`` (or at top level) and of all plugins, sorted."""
    parent = missing.rpartition(".")[0]
    path = getattr(sys.modules.get(parent), "__path__", ()) if parent else None
    prefix = f"{parent}." if parent else ""
    names = {f"{prefix}{module.name}" for module in pkgutil.iter_modules(path)}
    return sorted(names | {candidate.entry_point.module for candidate in find_candidates()})


def bundled_hint(error: ImportError) -> str:
    """Return the extra or requirement of stratalog that installs the missing module; "" if no requirement has its name."""
    try:
        requirements = importlib.metadata.requires(PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return install_hint(PROJECT, requirements, missing_module(error))


def _normalize_entry(name: str) -> str:
    distribution, colon, entry = name.rpartition(":")
    return f"{_normalize(distribution)}{colon}{entry}" if colon else name


def _normalize(name: str) -> str:
    """Return a distribution's name in lower case, with ``-`` for each run of the characters ``-``, ``_`` and ``.``."""
    return _SEPARATORS.sub("-", name).lower()
