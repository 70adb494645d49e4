"""Servers for tests and benchmarks: an MQTT broker, a Kafka broker, PostgreSQL, with or without Docker.

`txlayer.testing.servers` starts them; `txlayer.testing.plugin` has them as pytest fixtures.
"""

from txlayer.testing.server import How, Server, ServerFailed, ServerUnavailable

__all__ = ["How", "Server", "ServerFailed", "ServerUnavailable"]
