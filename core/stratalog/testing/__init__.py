"""For plugin authors: contracts to subclass, fixtures, a local S3."""
