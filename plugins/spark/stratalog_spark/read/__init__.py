"""Reading of batches and streams."""
