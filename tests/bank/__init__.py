"""Transfers between banks while brokers and databases fail: `python -m tests.bank --transfers 5000 --faults 100`."""
