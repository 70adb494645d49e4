"""The world on one seed: clock, network, disk and faults around the real roles and the real log."""
