"""A client-side transaction layer for message buses: MQTT, Kafka, or one process."""
