"""Create, alter and move topics."""
