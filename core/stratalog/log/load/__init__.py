"""Open a log: recover, replay, repair."""
