"""Handlers of requests that read and change the files of ACLs, quotas and users."""
