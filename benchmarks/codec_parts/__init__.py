"""Parts of the codec benchmark: workloads, sides, cases, and memory."""
