"""Servers for tests and benchmarks: an MQTT broker, a Kafka broker, PostgreSQL, with or without Docker."""
