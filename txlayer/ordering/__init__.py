"""Total notification order: the multistage sequencer and what its clients keep (TNO)."""
