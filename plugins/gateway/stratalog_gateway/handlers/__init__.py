"""Handlers of requests, by area."""
