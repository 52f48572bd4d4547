"""What is on offer, and how one of it is found: by name, by URI scheme, or by the label in a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from stratalog.env.deadlines import DeadlineCalls
from stratalog.errors import PluginClashError, PluginImportError, UnknownComponentError
from stratalog.registry.component_kinds import Kind
from stratalog.registry.guard import Guard
from stratalog.spi.hooks import PROJECT
from stratalog.spi.providers import OpenContext, Provider


class Named(Protocol):
    """Anything on offer."""

    @property
    def name(self) -> str:
        """What it is found by."""


P = TypeVar("P", bound=Named)
P_co = TypeVar("P_co", bound=Named, covariant=True)
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Offer(Generic[P_co]):
    """A provider (or a command) and who offers it.

    Attributes:
        provider: what is offered.
        plugin: the plugin's name: its entry point, or the module that the caller passed.
        distribution: the installed distribution, "" if the caller passed the plugin.
        version: of the distribution.
    """

    provider: P_co
    plugin: str
    distribution: str = ""
    version: str = ""

    @property
    def origin(self) -> str:
        """The plugin and its distribution, for texts."""
        return origin(self.plugin, self.distribution, self.version)


def origin(plugin: str, distribution: str, version: str) -> str:
    """``plugin s3 of stratalog 0.1.0``, for texts."""
    return f"plugin {plugin} of {distribution} {version}".rstrip() if distribution else f"plugin {plugin}"


class Shelf(Generic[P]):
    """All offers of one kind, by name.

    A name that is used twice is nobody's: looking it up and iterating raise, ``names`` and ``offers`` do not.

    Args:
        title: of the kind, for texts.
        offers: from all plugins, in any order.
        absent: one sentence for each plugin that is blocked or failed, as it may be what somebody looks for.

    Attributes: ``title`` and ``absent``, as given.
    """

    def __init__(self, title: str, offers: Iterable[Offer[P]], absent: Sequence[str] = ()) -> None:
        self.title, self.absent = title, tuple(absent)
        self._offers = tuple(sorted(offers, key=lambda offer: (offer.provider.name, offer.distribution, offer.plugin)))

    def names(self) -> tuple[str, ...]:
        """All names on offer, sorted."""
        return tuple(sorted({offer.provider.name for offer in self._offers}))

    def offers(self) -> tuple[Offer[P], ...]:
        """All offers, those that clash included."""
        return self._offers

    def by_name(self, name: str) -> P:
        """The one offer of this name.

        Raises:
            UnknownComponentError: there is none; the text lists what is there and which plugins could not be used.
            PluginClashError: there are several; the text names their distributions.
        """
        found = [offer for offer in self._offers if offer.provider.name == name]
        if not found:
            raise self._unknown(f"no {self.title} {name!r} is installed", self.names())
        self._refuse_clash(found, f"{self.title} {name!r}", "block all but one in plugins.block")
        return found[0].provider

    def __iter__(self) -> Iterator[Offer[P]]:
        for name in self.names():
            self.by_name(name)
        return iter(self._offers)

    def __len__(self) -> int:
        return len(self._offers)

    def __contains__(self, name: object) -> bool:
        return any(offer.provider.name == name for offer in self._offers)

    def _unknown(self, reason: str, there: Iterable[str]) -> UnknownComponentError:
        return _unknown(reason, there, self.absent)

    @staticmethod
    def _refuse_clash(found: Sequence[Offer[P]], what: str, advice: str) -> None:
        if len(found) > 1:
            owners = " and ".join(offer.origin for offer in found)
            raise PluginClashError(f"{what} is offered by {owners}: {advice}, or uninstall one")


class Catalogue(Shelf[Provider[C]]):
    """All providers of one kind.

    Args:
        kind: what they provide.
        offers: from all plugins, in any order.
        absent: as for a Shelf.
        prefer: for URI schemes that several providers claim, the name of the one to use.
        calls: where calls into components run that have a deadline.
    """

    def __init__(
        self,
        kind: Kind,
        offers: Iterable[Offer[Provider[C]]],
        absent: Sequence[str] = (),
        prefer: Mapping[str, str] | None = None,
        calls: DeadlineCalls | None = None,
    ) -> None:
        super().__init__(kind.title, offers, absent)
        self._kind, self._calls = kind, calls
        self._prefer = {scheme.lower(): name for scheme, name in (prefer or {}).items()}

    def schemes(self) -> tuple[str, ...]:
        """All URI schemes that are claimed, sorted."""
        return tuple(sorted({scheme for offer in self._offers for scheme in offer.provider.schemes}))

    def by_scheme(self, scheme: str) -> Provider[C]:
        """The provider for URIs of this scheme; case does not matter.

        Raises:
            UnknownComponentError: nobody claims it, or the preferred provider does not.
            PluginClashError: several claim it and the settings prefer none of them.
        """
        wanted = scheme.lower()
        claims = [offer for offer in self._offers if wanted in offer.provider.schemes]
        preferred = self._prefer.get(wanted)
        if claims and preferred is not None:
            there = [f"{offer.provider.name} ({offer.origin})" for offer in claims]
            claims = [offer for offer in claims if offer.provider.name == preferred]
            if not claims:
                reason = f"plugins.prefer wants {preferred!r} for {wanted}:// and that does not serve it"
                raise self._unknown(reason, there)
        if not claims:
            raise self._unknown(f"no {self.title} for {wanted}:// is installed", self.schemes())
        advice = f'choose with plugins.prefer = ["{wanted}={claims[0].provider.name}"]'
        self._refuse_clash(claims, f"{self.title} for {wanted}://", advice)
        return claims[0].provider

    def by_label(self, label: str) -> Provider[C]:
        """The provider that reads bytes written under ``name@version``.

        Raises:
            UnknownComponentError: there is none of the name, or only one that is too old.
            PluginClashError: several have the name.
        """
        check_requires((label,), (self,))
        return self.by_name(label.rpartition("@")[0])

    def guard(self, provider: Provider[C]) -> Guard:
        """The guard of calls into what one of these providers opens."""
        found = next((offer for offer in self._offers if offer.provider is provider), Offer(provider, ""))
        return Guard(
            f"{self.title} {provider.name!r} version {provider.version}",
            found.origin if found.plugin else "",
            is_bundled=found.distribution == PROJECT,
            calls=self._calls,
        )

    def open(self, provider: Provider[C], context: OpenContext) -> C:
        """Open the component of one of these providers, guarded.

        Raises:
            PluginImportError: a module that it needs is not installed, or cannot be imported.
            PluginError: opening it raised what is no StorageError, or returned something else than such a component.
        """
        guard = self.guard(provider)
        with guard.calling("open"):
            try:
                opened = provider.open(context)
            except ImportError as error:  # providers import when they open
                raise PluginImportError(f"{provider.name!r} cannot be opened: {error}", provider.name) from error
        guard.check_type("open", opened, self._kind.component)
        return opened


def check_requires(labels: Iterable[str], catalogues: Sequence[Catalogue[Any]]) -> None:
    """Check that everything which stored bytes require is installed. Any: the kinds are mixed on purpose.

    A provider reads every version of its bytes up to its own, so ``chunked@2`` satisfies ``chunked@1``.

    Args:
        labels: ``name@version`` as manifests list them.
        catalogues: where a name may be found.

    Raises:
        UnknownComponentError: one is missing, or installed in too old a version only; the text says which.
    """
    for label in labels:
        name, _, version = label.rpartition("@")
        if not name or not (version.isascii() and version.isdigit()):
            raise UnknownComponentError(f"requirement {label!r} is not of the form name@version")
        named = [offer for catalogue in catalogues for offer in catalogue.offers() if offer.provider.name == name]
        if any(offer.provider.version >= int(version) for offer in named):
            continue
        if named:
            older = " and ".join(f"{offer.provider.label} ({offer.origin})" for offer in named)
            raise UnknownComponentError(f"{label} is required to read this, and {older} is installed: upgrade it")
        there = sorted({offer.provider.label for catalogue in catalogues for offer in catalogue.offers()})
        absent = tuple(dict.fromkeys(sentence for catalogue in catalogues for sentence in catalogue.absent))
        raise _unknown(f"{label} is required to read this and not installed", there, absent)


def _unknown(reason: str, there: Iterable[str], absent: Sequence[str]) -> UnknownComponentError:
    advice = "; ".join(absent) or "install a plugin that offers it"
    return UnknownComponentError(f"{reason}; there are: {', '.join(there) or 'none'}; {advice}")
