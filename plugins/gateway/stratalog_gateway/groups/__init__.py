"""Consumer groups of the classic and of the consumer protocol: members, rebalances and assignments."""
