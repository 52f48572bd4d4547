"""Security: listeners, principals, credentials, permissions and quotas."""
