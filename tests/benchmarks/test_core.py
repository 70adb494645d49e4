"""What an open transaction takes at its coordinator."""

from benchmarks.core import bytes_at_coordinator


def test_an_open_transaction_of_three_members_takes_less_than_four_kibibytes() -> None:
    size, _ = bytes_at_coordinator(10_000)
    assert size < 4096
