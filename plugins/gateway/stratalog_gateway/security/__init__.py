"""Security of the gateway: listeners, principals, credentials, permissions and quotas."""
