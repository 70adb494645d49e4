"""Every crash point of a real process, on real brokers and databases: `python -m tests.crash_matrix --json`."""
