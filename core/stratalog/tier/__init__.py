"""The tier: closed segments of logs in an object store, with the manifests that list them."""
