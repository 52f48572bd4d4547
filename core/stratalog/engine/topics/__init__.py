"""Creating, altering, moving and deleting topics."""
