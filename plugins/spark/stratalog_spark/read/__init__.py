"""Reads by batch queries and by streaming queries."""
