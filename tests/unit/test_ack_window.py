"""Acknowledgements leave as a prefix, and never after their connection."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from txlayer import Delivery
from txlayer.adapters.ack_window import AckWindow

steps = st.lists(st.just("receive") | st.tuples(st.just("ack"), st.integers(0, 30)) | st.just("close"), max_size=60)


@given(steps)
def test_what_is_released_is_the_settled_prefix(script: list[str | tuple[str, int]]) -> None:
    released: list[int] = []
    window = AckWindow(lambda prefix: released.extend(delivery.token for delivery in prefix))
    received: list[Delivery] = []
    settled: set[int] = set()
    closed = False
    for step in script:
        if step == "receive":
            delivery = Delivery("t", b"")
            window.receive(delivery, len(received))
            received.append(delivery)
        elif step == "close":
            window.close()
            closed = True
        elif received:
            number = int(step[1]) % len(received)
            received[number].ack()
            if not closed:
                settled.add(number)
        prefix = 0
        while prefix in settled:
            prefix += 1
        assert released == list(range(prefix))


def test_an_acknowledgement_of_an_old_generation_reaches_nobody() -> None:
    old: list[int] = []
    new: list[int] = []
    first = AckWindow(lambda prefix: old.extend(delivery.token for delivery in prefix))
    late, again = Delivery("t", b""), Delivery("t", b"")
    first.receive(late, 1)
    first.close()
    second = AckWindow(lambda prefix: new.extend(delivery.token for delivery in prefix))
    second.receive(again, 1)  # the same packet id, perhaps of another message
    late.ack()
    assert (old, new) == ([], [])
    again.ack()
    assert (old, new) == ([], [1])


def test_acknowledging_from_many_threads_releases_everything_once_and_in_order() -> None:
    released: list[int] = []
    window = AckWindow(lambda prefix: released.extend(delivery.token for delivery in prefix))
    deliveries = [Delivery("t", b"") for _ in range(2000)]
    for token, delivery in enumerate(deliveries):
        window.receive(delivery, token)

    def settle(offset: int) -> None:
        for delivery in deliveries[offset::3]:
            delivery.ack()
            delivery.ack()

    threads = [threading.Thread(target=settle, args=(offset,)) for offset in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert released == list(range(2000))
    assert len(window) == 0
