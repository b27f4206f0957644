"""A TCP relay between a client and a node that can lose replies, answer in the server's place, or fall silent."""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from typing import Deque, Dict, List, Optional, Set, Tuple

SUBSCRIBING = {"SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE"}
PASS, DROP = "pass", "drop"


def _line(data: bytes, at: int) -> Optional[Tuple[bytes, int]]:
    end = data.find(b"\r\n", at)
    return None if end < 0 else (data[at:end], end + 2)


def frame_end(data: bytes, at: int = 0) -> Optional[int]:
    """Where the RESP frame that begins at `at` ends, None where it is not complete."""
    head = _line(data, at)
    if head is None:
        return None
    line, at = head
    kind, rest = line[:1], line[1:]
    if kind in b"$=!":
        size = int(rest)
        end = at if size < 0 else at + size + 2
        return end if end <= len(data) else None
    if kind in b"*%~>":
        for _ in range(int(rest) * (2 if kind == b"%" else 1)):
            found = frame_end(data, at)
            if found is None:
                return None
            at = found
    return at


def command_name(frame: bytes) -> str:
    parts = frame.split(b"\r\n")
    name = parts[2].decode().upper()
    if name == "FCALL":
        return parts[4].decode().upper().replace("_", ".", 1)
    if name == "LOCK.SESSION" and len(parts) > 4:
        return f"{name} {parts[4].decode().upper()}"
    return name


class Relay:
    def __init__(self, upstream: Tuple[str, int]) -> None:
        self.upstream = upstream
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.rules: Dict[str, List[str]] = {}  # command -> what happens to the next ones
        self.seen: Dict[str, int] = {}
        self.open = threading.Event()
        self.open.set()
        self.refusing = False
        self.closed = False
        self._pairs: Set[Tuple[socket.socket, socket.socket]] = set()
        self._mutex = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def rule(self, command: str, action: str, count: int) -> None:
        with self._mutex:
            self.rules.setdefault(command, []).extend([action] * count)

    def cut(self) -> None:
        self.open.clear()

    def heal(self) -> None:
        self.open.set()
        self.refusing = False
        with self._mutex:
            self.rules.clear()

    def disconnect(self) -> None:
        with self._mutex:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for sock in pair:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def crash(self) -> None:
        self.refusing = True
        self.disconnect()

    def close(self) -> None:
        self.closed = True
        self.listener.close()
        self.open.set()
        self.disconnect()

    def connections(self) -> int:
        with self._mutex:
            return len(self._pairs)

    def _accept(self) -> None:
        while not self.closed:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refusing or self.closed:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.open.wait()
        try:
            server = socket.create_connection(self.upstream, timeout=5)
            server.settimeout(None)
        except OSError:
            client.close()
            return
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, server)
        with self._mutex:
            self._pairs.add(pair)
        try:
            Exchange(self, client, server).run()
        except OSError:
            pass
        finally:
            with self._mutex:
                self._pairs.discard(pair)
            client.close()
            server.close()

    def action(self, command: str) -> str:
        with self._mutex:
            self.seen[command] = self.seen.get(command, 0) + 1
            waiting = self.rules.get(command)
            return waiting.pop(0) if waiting else PASS


class Exchange:
    """One connection through the relay."""

    def __init__(self, relay: Relay, client: socket.socket, server: socket.socket) -> None:
        self.relay, self.client, self.server = relay, client, server
        self.pending: Deque[str] = deque()

    def run(self) -> None:
        requests, replies = b"", b""
        selector = selectors.DefaultSelector()
        selector.register(self.client, selectors.EVENT_READ)
        selector.register(self.server, selectors.EVENT_READ)
        with selector:
            while True:
                ready = selector.select()
                self.relay.open.wait()
                for key, _ in ready:
                    data = key.fileobj.recv(65536)
                    if not data:
                        return
                    if key.fileobj is self.client:
                        requests = self._requests(requests + data)
                    else:
                        rest = self._replies(replies + data)
                        if rest is None:
                            return
                        replies = rest

    def _requests(self, data: bytes) -> bytes:
        while True:
            end = frame_end(data)
            if end is None:
                return data
            frame, data = data[:end], data[end:]
            name = command_name(frame)
            action = self.relay.action(name)
            if action == "UNAVAILABLE":
                self.client.sendall(b"-UNAVAILABLE no leader (relay)\r\n")
                continue
            if name not in SUBSCRIBING:
                self.pending.append(action)
            self.server.sendall(frame)

    def _replies(self, data: bytes) -> Optional[bytes]:
        while True:
            end = frame_end(data)
            if end is None:
                return data
            frame, data = data[:end], data[end:]
            if frame[:1] == b">":
                self.client.sendall(frame)
                continue
            action = self.pending.popleft() if self.pending else PASS
            if action == DROP:
                return None
            if action == "INDETERMINATE":
                frame = b"-INDETERMINATE outcome unknown (relay)\r\n"
            self.client.sendall(frame)
