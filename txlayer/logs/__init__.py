"""Where decisions become durable: one port, several disks."""
