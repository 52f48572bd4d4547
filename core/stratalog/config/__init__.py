"""Settings of engines and topics: values with Kafka's names, defaults and bounds."""
