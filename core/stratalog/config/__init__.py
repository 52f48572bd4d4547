"""Settings: plain data with Kafka's names, defaults and bounds. No setting is a component."""
