"""Bytes of Kafka's protocol: frames, headers, and codecs of requests and responses."""
