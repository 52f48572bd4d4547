"""The tier: closed segments of logs in an object store, with the manifests that list them.

The functions of this package may raise these errors. A docstring repeats such an error only to add a fact:

- StoreError: a request to the store failed or was refused. The call can be repeated.
- CorruptManifestError: a root or page of a manifest is damaged; TamperedManifestError: a MAC is wrong or missing.
- UnknownComponentError: a newer stratalog wrote an object, or a layout is not installed.
- ConfigError: the key of a MAC or of a segment is missing.
- FencedEpochError: another writer owns the log, so nothing is committed.
- ReadOnlyError, TierUnavailableError, StoreUntrustedError: the tier cannot be changed, or cannot be used.
"""
