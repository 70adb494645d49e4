"""Letters over sockets, the side that connects: clients of the chain, and hosts towards each other.

It begins with the addresses of its URL; each host tells the claims that it knows, and with them the other addresses. A
connection that breaks is made again; what was on its way is lost, and asked for again by the roles.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from txlayer.errors import DecodeError, UsageError
from txlayer.sequencing import tcp_frames
from txlayer.sequencing.claims import Claim, Found, fault_in
from txlayer.sequencing.exchange import Letter, Listeners, Receive
from txlayer.sequencing.tcp_frames import Chain, Names, Packet

_logger = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
Address = tuple[str, int]


class NetThread:
    """An asyncio loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"txlayer-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def post(self, act: Callable[..., object], *arguments: object) -> None:
        """From any thread; nothing happens after `close`."""
        try:
            self.loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            _logger.debug("dropped: the network thread has ended")

    def close(self) -> None:
        """Cancel what runs, end the thread."""
        if self.loop.is_closed():
            return
        done = asyncio.run_coroutine_threadsafe(self._cancel(), self.loop)
        done.result(5.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
        self.loop.close()

    async def _cancel(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TcpExchange:
    """Connections to the hosts of a chain."""

    def __init__(self, url: str = "") -> None:
        self._net = NetThread("order-tcp")
        self._listeners = Listeners()
        self._found: Found = lambda claim: None
        self._claims: dict[int, Claim] = {}
        self._writers: dict[Address, asyncio.StreamWriter] = {}
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._by_name: dict[str, Address] = {}
        for address in tcp_frames.addresses(url) if url else []:
            self._net.post(self._connect, address)

    def follow(self, found: Found) -> Callable[[], None]:
        """Tell the claims that hosts tell; the result ends it."""

        def begin() -> None:
            self._found = found
            for claim in self._claims.values():
                found(claim)

        self._net.post(begin)
        return lambda: self._net.post(self._unfollow)

    def know(self, claim: Claim) -> None:
        """A host and its address."""
        self._net.post(self._learn, claim)

    def reaches(self, name: str) -> bool:
        """Whether there is an address for this host."""
        return name in self._by_name

    def listen(self, name: str, receive: Receive) -> None:
        self._listeners.by_name[name] = receive
        self._net.post(self._tell_names)

    def silence(self, name: str, receive: Receive) -> None:
        self._listeners.remove(name, receive)

    def send(self, letters: Sequence[Letter]) -> None:
        self._net.post(self._write, letters)

    def close(self) -> None:
        self._net.close()

    # On the network thread

    def _unfollow(self) -> None:
        self._found = lambda claim: None

    def _learn(self, claim: Claim) -> None:
        fault = fault_in(claim)
        if fault is not None:
            _logger.warning("not a claim of a sequencer host: %s", fault)
        if fault is not None or self._claims.get(claim.host) == claim:
            return
        self._claims[claim.host] = claim
        if claim.address:
            try:
                address = tcp_frames.addresses(claim.address)[0]
            except UsageError as exc:
                _logger.warning("host %s cannot be reached by socket: %s", claim.name, exc)
            else:
                self._by_name[claim.name] = address
                self._connect(address)
        self._found(claim)

    def _connect(self, address: Address) -> None:
        if address not in self._tasks:
            self._tasks[address] = self._net.loop.create_task(self._keep_connected(address))

    def _tell_names(self) -> None:
        for writer in self._writers.values():
            tcp_frames.write(writer, Names(tuple(self._listeners.by_name)))

    def _write(self, letters: Sequence[Letter]) -> None:
        by_address: dict[Address, list[Letter]] = {}
        for letter in letters:
            address = self._by_name.get(letter[0])
            if address is not None:
                by_address.setdefault(address, []).append(letter)
        for address, these in by_address.items():
            writer = self._writers.get(address)
            if writer is None or not all(tcp_frames.write(writer, packet) for packet in tcp_frames.packets(these)):
                _logger.info("%d letters to %s:%d were not sent", len(these), *address)

    async def _keep_connected(self, address: Address) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                reader, writer = await asyncio.open_connection(*address)
            except OSError as exc:
                _logger.debug("%s:%d: %s", *address, exc)
            else:
                pause = _FIRST_PAUSE
                await self._converse(address, reader, writer)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _converse(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            tcp_frames.write(writer, Names(tuple(self._listeners.by_name)))
            self._writers[address] = writer
            while True:
                self._take(await tcp_frames.read(reader))
        except (OSError, asyncio.IncompleteReadError) as exc:
            _logger.info("the connection to %s:%d broke: %s", *address, exc)
        except DecodeError as exc:
            _logger.warning("%s:%d: %s", *address, exc)
        finally:
            self._writers.pop(address, None)
            writer.close()

    def _take(self, frame: tcp_frames.Frame) -> None:
        match frame:
            case Packet():
                self._listeners.deliver(frame.letters)
            case Chain():
                for claim in frame.claims:
                    self._learn(claim)
            case Names():
                pass  # only clients say that
