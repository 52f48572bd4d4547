from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from stratalog.errors import PluginClashError, UnknownComponentError
from stratalog.registry.component_kinds import CODECS, OBJECT_STORES
from stratalog.registry.resolve import Catalogue, Offer, check_requires
from stratalog.spi import Codec, Provider

MakeProvider = Callable[..., Provider[Codec]]


@pytest.fixture
def offer(provider: MakeProvider) -> Callable[..., Offer[Provider[Codec]]]:
    """Return a function that makes an offer: ``offer("zstd", "acme", version=2, schemes={"s3"})``.

    The second argument is the distribution.
    """

    def make(
        name: str, distribution: str = "acme", version: int = 1, schemes: Sequence[str] = ()
    ) -> Offer[Provider[Codec]]:
        return Offer(provider(name, version, frozenset(schemes)), f"{distribution}_plugin", distribution, "1.0")

    return make


MakeOffer = Callable[..., Offer[Provider[Codec]]]


def test_by_name_finds_the_component(offer: MakeOffer) -> None:
    zstd = offer("zstd")
    catalogue: Catalogue[Codec] = Catalogue(CODECS, [offer("lz4"), zstd])
    assert catalogue.by_name("zstd") is zstd.provider
    assert "zstd" in catalogue
    assert "gzip" not in catalogue
    assert len(catalogue) == 2


def test_the_order_of_offers_means_nothing(offer: MakeOffer) -> None:
    offers = [offer("zstd"), offer("gzip"), offer("lz4")]
    catalogue: Catalogue[Codec] = Catalogue(CODECS, offers)
    assert catalogue.names() == ("gzip", "lz4", "zstd")
    assert list(catalogue) == list(Catalogue(CODECS, reversed(offers)))
    assert [entry.provider.name for entry in catalogue] == ["gzip", "lz4", "zstd"]


def test_an_unknown_name_lists_what_is_there_and_what_could_not_be_used(offer: MakeOffer) -> None:
    absent = ["plugin acme of acme 1.0 failed: no libacme", "plugin b is blocked"]
    catalogue: Catalogue[Codec] = Catalogue(CODECS, [offer("lz4"), offer("gzip")], absent)
    with pytest.raises(UnknownComponentError) as caught:
        catalogue.by_name("zstd")
    text = str(caught.value)
    assert "no codec 'zstd' is installed; installed: gzip, lz4" in text
    assert all(sentence in text for sentence in absent)


def test_the_error_of_an_unknown_name_without_plugins_advises_to_install_one() -> None:
    catalogue: Catalogue[Codec] = Catalogue(CODECS, [])
    with pytest.raises(UnknownComponentError, match=r"installed: none; install a plugin"):
        catalogue.by_name("zstd")


def test_a_name_used_twice_names_both_distributions(offer: MakeOffer) -> None:
    catalogue: Catalogue[Codec] = Catalogue(CODECS, [offer("zstd", "one"), offer("zstd", "two"), offer("gzip")])
    with pytest.raises(PluginClashError) as caught:
        catalogue.by_name("zstd")
    assert "plugin one_plugin of one 1.0" in str(caught.value)
    assert "plugin two_plugin of two 1.0" in str(caught.value)
    assert catalogue.by_name("gzip").name == "gzip"
    assert catalogue.names() == ("gzip", "zstd")
    assert len(catalogue.offers()) == 3


def test_iterating_over_a_clash_raises_as_the_last_one_would_win_silently(offer: MakeOffer) -> None:
    catalogue: Catalogue[Codec] = Catalogue(CODECS, [offer("zstd", "one"), offer("zstd", "two")])
    with pytest.raises(PluginClashError):
        iter(catalogue)


def test_by_scheme_takes_any_case(offer: MakeOffer) -> None:
    s3 = offer("s3", schemes=("s3", "s3a"))
    catalogue: Catalogue[Codec] = Catalogue(OBJECT_STORES, [s3, offer("gcs", schemes=("gs",))])
    assert catalogue.by_scheme("S3A") is s3.provider
    assert catalogue.schemes() == ("gs", "s3", "s3a")


def test_a_name_is_no_scheme(offer: MakeOffer) -> None:
    catalogue: Catalogue[Codec] = Catalogue(OBJECT_STORES, [offer("s3", schemes=("s3a",))])
    with pytest.raises(UnknownComponentError, match=r"no object store for s3:// is installed; installed: s3a"):
        catalogue.by_scheme("s3")


def test_a_scheme_claimed_twice_is_an_error_until_the_settings_choose(offer: MakeOffer) -> None:
    first, second = offer("fast", "one", schemes=("s3",)), offer("plain", "two", schemes=("s3", "gs"))
    with pytest.raises(PluginClashError) as caught:
        Catalogue(OBJECT_STORES, [first, second]).by_scheme("s3")
    assert "one 1.0" in str(caught.value)
    assert "two 1.0" in str(caught.value)
    assert 'plugins.prefer = ["s3=' in str(caught.value)
    catalogue = Catalogue(OBJECT_STORES, [first, second], prefer={"S3": "plain"})
    assert catalogue.by_scheme("s3") is second.provider
    assert catalogue.by_scheme("gs") is second.provider


def test_a_preference_for_what_does_not_serve_the_scheme_is_an_error(offer: MakeOffer) -> None:
    catalogue: Catalogue[Codec] = Catalogue(
        OBJECT_STORES, [offer("fast", schemes=("s3",)), offer("other", schemes=("gs",))], prefer={"s3": "other"}
    )
    with pytest.raises(UnknownComponentError, match=r"names 'other' for s3://.* installed: fast"):
        catalogue.by_scheme("s3")


def test_a_preferred_name_that_two_offer_is_still_a_clash(offer: MakeOffer) -> None:
    offers = [offer("fast", "one", schemes=("s3",)), offer("fast", "two", schemes=("s3",))]
    with pytest.raises(PluginClashError):
        Catalogue(OBJECT_STORES, offers, prefer={"s3": "fast"}).by_scheme("s3")


@pytest.mark.parametrize("label", ["chunked@1", "chunked@2"])
def test_a_provider_reads_its_own_version_and_older_ones(offer: MakeOffer, label: str) -> None:
    chunked = offer("chunked", version=2)
    assert Catalogue(CODECS, [chunked]).by_label(label) is chunked.provider


def test_a_newer_version_advises_an_upgrade(offer: MakeOffer) -> None:
    catalogue: Catalogue[Codec] = Catalogue(CODECS, [offer("chunked", "acme", version=2)])
    with pytest.raises(
        UnknownComponentError, match=r"chunked@3 is required .* chunked@2 \(plugin .* of acme 1.0\).* upgrade"
    ):
        catalogue.by_label("chunked@3")


def test_requirements_may_be_in_any_catalogue(offer: MakeOffer) -> None:
    codecs: Catalogue[Codec] = Catalogue(CODECS, [offer("zstd")], ["plugin x failed"])
    layouts: Catalogue[Codec] = Catalogue(OBJECT_STORES, [offer("single")], ["plugin x failed"])
    check_requires(("zstd@1", "single@1"), (codecs, layouts))
    with pytest.raises(UnknownComponentError) as caught:
        check_requires(("zstd@1", "encrypted@1"), (codecs, layouts))
    assert "encrypted@1 is required" in str(caught.value)
    assert "single@1, zstd@1" in str(caught.value)
    assert str(caught.value).count("plugin x failed") == 1


@pytest.mark.parametrize("label", ["", "zstd", "@1", "zstd@", "zstd@x", "zstd@-1", "zstd@\N{SUPERSCRIPT TWO}"])
def test_a_malformed_requirement_is_refused(offer: MakeOffer, label: str) -> None:
    with pytest.raises(UnknownComponentError, match="name@version"):
        check_requires((label,), (Catalogue(CODECS, [offer("zstd")]),))
