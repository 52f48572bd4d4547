"""Operations on whole logs of a tier: takeover by a new engine, download, and archive of a Kafka broker's logs."""
