"""Lookup of offered components: by name, by URI scheme, or by the label in a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stratalog.env.deadlines import DeadlineCalls
from stratalog.errors import PluginClashError, PluginImportError, UnknownComponentError
from stratalog.registry.component_kinds import ComponentKind
from stratalog.registry.guard import Guard
from stratalog.spi.hooks import PROJECT
from stratalog.spi.providers import OpenContext, Provider
from stratalog.spi.service_contract import Command

P = TypeVar("P", bound=Provider[Any] | Command)
P_co = TypeVar("P_co", bound=Provider[Any] | Command, covariant=True)
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Offer(Generic[P_co]):
    """A provider (or a command) and the plugin that offers it.

    Attributes:
        provider: the provider, or the command.
        plugin: name of the plugin's entry point, or of the module or class that the caller passed.
        distribution: the installed distribution, "" if the caller passed the plugin.
        version: version of the distribution.
    """

    provider: P_co
    plugin: str
    distribution: str = ""
    version: str = ""

    @property
    def origin(self) -> str:
        """The plugin and its distribution, for texts, such as ``plugin s3 of stratalog 0.1.0``."""
        return origin(self.plugin, self.distribution, self.version)


def origin(plugin: str, distribution: str, version: str) -> str:
    """Return a plugin's description for texts, such as ``plugin s3 of stratalog 0.1.0``."""
    return f"plugin {plugin} of {distribution} {version}".rstrip() if distribution else f"plugin {plugin}"


class OfferTable(Generic[P]):
    """All offers of one kind, by name.

    If several offers have the same name, a lookup of this name and an iteration over the table raise PluginClashError.
    ``names`` and ``offers`` never raise this error.

    Args:
        title: name of the kind, for texts.
        offers: the offers of all plugins, in any order.
        absent: one sentence for each blocked or failed plugin. The error for an unknown name contains these sentences,
            because one of these plugins may offer the name.

    Attributes: ``title`` and ``absent`` have the values of these arguments.
    """

    def __init__(self, title: str, offers: Iterable[Offer[P]], absent: Sequence[str] = ()) -> None:
        self.title, self.absent = title, tuple(absent)
        self._offers = tuple(sorted(offers, key=lambda offer: (offer.provider.name, offer.distribution, offer.plugin)))

    def names(self) -> tuple[str, ...]:
        """Return all offered names, sorted."""
        return tuple(sorted({offer.provider.name for offer in self._offers}))

    def offers(self) -> tuple[Offer[P], ...]:
        """Return all offers, including those with the same name."""
        return self._offers

    def by_name(self, name: str) -> P:
        """Return the provider (or command) with this name.

        Raises:
            UnknownComponentError: no offer has this name; the text lists the offers, and blocked and failed plugins.
            PluginClashError: several offers have this name; the text names their distributions.
        """
        matching = [offer for offer in self._offers if offer.provider.name == name]
        if not matching:
            raise _unknown(f"no {self.title} {name!r} is installed", self.names(), self.absent)
        self._refuse_clash(matching, f"{self.title} {name!r}", "add all but one to plugins.block")
        return matching[0].provider

    def __iter__(self) -> Iterator[Offer[P]]:
        for name in self.names():
            self.by_name(name)
        return iter(self._offers)

    def __len__(self) -> int:
        return len(self._offers)

    def __contains__(self, name: object) -> bool:
        return any(offer.provider.name == name for offer in self._offers)

    @staticmethod
    def _refuse_clash(offers: Sequence[Offer[P]], subject: str, advice: str) -> None:
        if len(offers) > 1:
            owners = " and ".join(offer.origin for offer in offers)
            raise PluginClashError(f"{subject} is offered by {owners}: {advice}, or uninstall one")


class Catalogue(OfferTable[Provider[C]]):
    """All providers of one kind.

    Args:
        kind, offers, absent: see ``OfferTable``.
        prefer: mapping of URI scheme to provider name, for schemes that several providers serve.
        calls: the threads for calls into components with a deadline.

    Attributes:
        component: the class of the components.
    """

    def __init__(
        self,
        kind: ComponentKind,
        offers: Iterable[Offer[Provider[C]]],
        absent: Sequence[str] = (),
        prefer: Mapping[str, str] | None = None,
        calls: DeadlineCalls | None = None,
    ) -> None:
        super().__init__(kind.title, offers, absent)
        self._kind, self._calls, self.component = kind, calls, kind.component
        self._prefer = {scheme.lower(): name for scheme, name in (prefer or {}).items()}

    def schemes(self) -> tuple[str, ...]:
        """Return all URI schemes that a provider serves, sorted."""
        return tuple(sorted({scheme for offer in self._offers for scheme in offer.provider.schemes}))

    def by_scheme(self, scheme: str) -> Provider[C]:
        """Return the provider for URIs with this scheme. Upper and lower case are not distinguished.

        Raises:
            UnknownComponentError: no provider serves the scheme, or the preferred provider does not serve it.
            PluginClashError: several providers serve the scheme, and ``plugins.prefer`` does not select one of them.
        """
        lower_scheme = scheme.lower()
        claims = [offer for offer in self._offers if lower_scheme in offer.provider.schemes]
        preferred_name = self._prefer.get(lower_scheme)
        if claims and preferred_name is not None:
            serving = [f"{offer.provider.name} ({offer.origin})" for offer in claims]
            claims = [offer for offer in claims if offer.provider.name == preferred_name]
            if not claims:
                reason = f"plugins.prefer names {preferred_name!r} for {lower_scheme}://, which it does not serve"
                raise _unknown(reason, serving, self.absent)
        if not claims:
            raise _unknown(f"no {self.title} for {lower_scheme}:// is installed", self.schemes(), self.absent)
        advice = f'choose one with plugins.prefer = ["{lower_scheme}={claims[0].provider.name}"]'
        self._refuse_clash(claims, f"{self.title} for {lower_scheme}://", advice)
        return claims[0].provider

    def by_label(self, label: str) -> Provider[C]:
        """Return the provider that can read bytes of the component ``label`` (``name@version``).

        Raises the errors of ``check_requires`` and ``by_name``.
        """
        check_requires((label,), (self,))
        return self.by_name(label.rpartition("@")[0])

    def guard(self, provider: Provider[C]) -> Guard:
        """Return the guard for calls into the component of ``provider``, a provider of this catalogue."""
        matching = next((offer for offer in self._offers if offer.provider is provider), Offer(provider, ""))
        return Guard(
            f"{self.title} {provider.name!r} version {provider.version}",
            matching.origin if matching.plugin else "",
            is_bundled=matching.distribution == PROJECT,
            calls=self._calls,
        )

    def open(self, provider: Provider[C], context: OpenContext) -> C:
        """Open and return the component of ``provider``, a provider of this catalogue.

        Raises:
            PluginImportError: a module that the component needs cannot be imported.
            PluginError: ``open`` raised an exception that is not a StorageError, or returned a value of a wrong type.
                Or ``open`` of a component that does not come with stratalog took longer than ``plugin.deadline.ms``.
            StorageError: ``open`` raised this error, for example a LogDirError or StoreError of a store.
        """
        guard = self.guard(provider)

        def work() -> C:
            try:
                return provider.open(context)
            except ImportError as error:  # providers import heavy modules when they open
                raise PluginImportError(f"{provider.name!r} cannot be opened: {error}", provider.name) from error

        component = guard.call("open", work, close=_close)
        guard.check_type("open", component, self._kind.component)
        return component


def _close(component: object) -> None:
    """Close a component that opened after the deadline. Only stores have a method ``close``."""
    close = getattr(component, "close", None)
    if close is not None:
        close()


def check_requires(labels: Iterable[str], catalogues: Sequence[Catalogue[Any]]) -> None:
    """Check that all components that stored bytes require are installed.

    A provider reads the bytes of its own version and of all earlier versions: ``chunked@2`` also reads ``chunked@1``.

    Args:
        labels: ``name@version`` as manifests list them.
        catalogues: the catalogues to search, of any kinds.

    Raises:
        UnknownComponentError: a component is missing, or its installed version is too old, or a label is malformed; the
            text names the component.
    """
    for label in labels:
        name, _, version = label.rpartition("@")
        if not name or not (version.isascii() and version.isdigit()):
            raise UnknownComponentError(f"requirement {label!r} is not of the form name@version")
        same_name = [offer for catalogue in catalogues for offer in catalogue.offers() if offer.provider.name == name]
        if any(offer.provider.version >= int(version) for offer in same_name):
            continue
        if same_name:
            older = " and ".join(f"{offer.provider.label} ({offer.origin})" for offer in same_name)
            raise UnknownComponentError(
                f"{label} is required to read this, and {older} is installed: upgrade the plugin"
            )
        installed_labels = sorted({offer.provider.label for catalogue in catalogues for offer in catalogue.offers()})
        absent = tuple(dict.fromkeys(sentence for catalogue in catalogues for sentence in catalogue.absent))
        raise _unknown(f"{label} is required to read this, and is not installed", installed_labels, absent)


def _unknown(reason: str, installed: Iterable[str], absent: Sequence[str]) -> UnknownComponentError:
    advice = "; ".join(absent) or "install a plugin that offers it"
    return UnknownComponentError(f"{reason}; installed: {', '.join(installed) or 'none'}; {advice}")
