"""Transactions of producers: the handle of a transaction, the coordinator, and the stored states."""
