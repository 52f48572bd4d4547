"""Writing of batches and streams."""
