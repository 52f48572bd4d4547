"""Plugins: discovery, filtering, loading and lookup of their components. Only this package calls plugins' hooks."""

from __future__ import annotations

from stratalog.registry.plugins import PluginInfo, PluginStatus
from stratalog.registry.registry import Registry
from stratalog.registry.resolve import Catalogue, Offer, OfferTable

__all__ = ["Catalogue", "Offer", "OfferTable", "PluginInfo", "PluginStatus", "Registry"]
