"""Loading of a log: recovery, replay, repair."""
