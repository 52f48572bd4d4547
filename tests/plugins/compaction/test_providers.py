from __future__ import annotations

import stratalog_compaction
from stratalog.config.engine_settings import Limits
from stratalog.env import Env, PosixVfs
from stratalog.env.handles import HandlePool
from stratalog.registry.registry import Registry
from stratalog.spi import CodecTable, OpenContext
from stratalog_compaction.compact import CompactPolicy
from stratalog_compaction.delete import DeletePolicy


def test_it_offers_kafkas_two_policies_and_more() -> None:
    providers = {provider.name: provider for provider in stratalog_compaction.stratalog_cleanup_policies()}
    assert set(providers) == {"delete", "compact", "latest_by_timestamp", "latest_by_header", "ttl"}
    assert all(provider.version == 1 for provider in providers.values())


def test_they_open_as_installed() -> None:
    context = OpenContext(env=Env(), limits=Limits(), handles=HandlePool(PosixVfs(), 8), codecs=CodecTable())
    policies = Registry.load().cleanup_policies()
    assert isinstance(policies.by_name("delete").open(context), DeletePolicy)
    assert isinstance(policies.by_name("compact").open(context), CompactPolicy)
