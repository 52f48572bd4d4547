"""Tools for plugin authors: contract classes, pytest fixtures, fault injection, a local S3 server."""
