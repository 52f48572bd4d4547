"""The parts of the codec benchmark: workloads, the sides that take part, the cases, and memory."""
