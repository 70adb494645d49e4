"""Letters over sockets, the side that listens: a host. Who has connected is reached over its own connection.

A host talks to clients by socket if they came by socket, to other hosts by socket if they have an address, and over the
bus to everyone else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from txlayer.errors import DecodeError, UsageError
from txlayer.sequencing import tcp_frames
from txlayer.sequencing.claims import Claim
from txlayer.sequencing.exchange import Exchange, Letter, Listeners, Receive, is_client
from txlayer.sequencing.tcp_exchange import NetThread, TcpExchange
from txlayer.sequencing.tcp_frames import Chain, Names, Packet

_logger = logging.getLogger(__name__)
_LISTENING = 10.0


class HostExchange:
    """Sockets in front, the bus behind."""

    def __init__(self, listen_url: str, bus: Exchange) -> None:
        self._bus = bus
        self._net = NetThread("order-host")
        self._listeners = Listeners()
        self._peers = TcpExchange()
        self._claims: dict[int, Claim] = {}
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._by_name: dict[str, asyncio.StreamWriter] = {}
        [(host, port)] = tcp_frames.addresses(listen_url)
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, host, port), self._net.loop)
        try:
            self._server = starting.result(_LISTENING)
        except OSError as exc:
            self._net.close()
            self._peers.close()
            raise UsageError(f"cannot listen at {listen_url}: {exc}") from exc
        bound = self._server.sockets[0].getsockname()[1]
        self.address = f"tcp://{host}:{bound}"

    def know(self, claim: Claim) -> None:
        """A host of the chain: clients are told of it, and it is spoken to at its address."""
        self._peers.know(claim)
        self._net.post(self._tell, claim)

    def listen(self, name: str, receive: Receive) -> None:
        self._listeners.by_name[name] = receive
        self._peers.listen(name, receive)
        self._bus.listen(name, receive)

    def silence(self, name: str, receive: Receive) -> None:
        self._listeners.remove(name, receive)
        self._peers.silence(name, receive)
        self._bus.silence(name, receive)

    def send(self, letters: Sequence[Letter]) -> None:
        near: list[Letter] = []
        peers: list[Letter] = []
        rest: list[Letter] = []
        for letter in letters:
            to = letter[0]
            if to in self._by_name:
                near.append(letter)
            elif not is_client(to) and to not in self._listeners.by_name and self._peers.reaches(to):
                peers.append(letter)
            else:
                rest.append(letter)
        if near:
            self._net.post(self._write, near)
        if peers:
            self._peers.send(peers)
        if rest:
            self._bus.send(rest)

    def close(self) -> None:
        self._net.post(self._server.close)
        self._net.close()
        self._peers.close()
        self._bus.close()

    # On the network thread

    def _tell(self, claim: Claim) -> None:
        self._claims[claim.host] = claim
        for writer in self._writers:
            tcp_frames.write(writer, Chain((claim,)))

    def _write(self, letters: Sequence[Letter]) -> None:
        by_writer: dict[asyncio.StreamWriter, list[Letter]] = {}
        for letter in letters:
            writer = self._by_name.get(letter[0])
            if writer is not None:
                by_writer.setdefault(writer, []).append(letter)
        for writer, these in by_writer.items():
            for packet in tcp_frames.packets(these):
                tcp_frames.write(writer, packet)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        tcp_frames.write(writer, Chain(tuple(self._claims.values())))
        try:
            while True:
                self._take(await tcp_frames.read(reader), writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            _logger.debug("a client has gone, or this host ends")
        except DecodeError as exc:
            _logger.warning("a client was cut off: %s", exc)
        finally:
            del self._writers[writer]
            for name in [name for name, where in self._by_name.items() if where is writer]:
                del self._by_name[name]
            writer.close()

    def _take(self, frame: tcp_frames.Frame, writer: asyncio.StreamWriter) -> None:
        match frame:
            case Packet():
                self._listeners.deliver(frame.letters)
            case Names():
                for name in frame.names:
                    if is_client(name):
                        self._by_name[name] = writer
            case Chain():
                pass  # only hosts say that
