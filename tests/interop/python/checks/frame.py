"""What every check program needs: the addresses, the control port, a bare RESP connection for LOCK.*, and the JSON lines.

Runs on Python 3.7 and later (aioredis asks for an old one), standard library only.
"""

import asyncio
import json
import os
import random
import socket
import sys
import threading
import time
import traceback

NODES = os.environ["INTEROP_NODES"].split(",")
REDLOCK = [address for address in os.environ.get("INTEROP_REDLOCK", "").split(",") if address]
CHANCE = random.Random(int(os.environ.get("INTEROP_SEED", "0")))
NAMES = iter("%s-%d" % (CHANCE.randrange(1 << 32), number) for number in range(1000000))


def host_port(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


class Failed(Exception):
    """A check that did not hold; the text says what was seen."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def fresh_name(topic):
    return "interop:%s:%s" % (topic, next(NAMES))


# The control port.

def control(line):
    """One command to the driver; the addresses it answers with."""
    with socket.create_connection(host_port(os.environ["INTEROP_CONTROL"]), timeout=40) as connection:
        connection.sendall(line.encode() + b"\n")
        answer = connection.makefile().readline().split()
    expect(answer and answer[0] == "ok", "control %s: %s" % (line, " ".join(answer) or "no answer"))
    return answer[1:]


# LOCK.* without any library.

class ReplyError(Exception):
    """An error reply of the server."""


class Raw:
    """A RESP2 connection that sends words and reads one reply."""

    def __init__(self, address, timeout_s=15):
        self.socket = socket.create_connection(host_port(address), timeout=timeout_s)
        self.stream = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.socket.close()

    def __call__(self, *words):
        request = b"*%d\r\n" % len(words)
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            request += b"$%d\r\n%s\r\n" % (len(word), word)
        self.socket.sendall(request)
        reply = self.read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def read(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended within a reply")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return ReplyError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest.decode()
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2].decode(errors="replace")
        return None if rest == b"-1" else [self.read() for _ in range(int(rest))]


def raw(*words):
    """One command to the first node that takes the connection."""
    refused = None
    for address in NODES:
        try:
            with Raw(address) as connection:
                return connection(*words)
        except OSError as error:
            refused = error
    raise refused


def lock_info(key):
    pairs = raw("LOCK.INFO", key)
    return dict(zip(pairs[::2], pairs[1::2]))


def held_fence(key):
    """The fence under which the key is held; fails where it is free."""
    info = lock_info(key)
    expect(info["state"] == "held" and info["fence"] > 0, "LOCK.INFO %s says %s" % (key, info))
    return info["fence"]


def is_free(key):
    return lock_info(key)["state"] == "free"


# Time.

def until(condition, seconds, text):
    """Waits for the condition; how long it took in milliseconds."""
    started = time.monotonic()
    while not condition():
        expect(time.monotonic() < started + seconds, text + " within %s s" % seconds)
        time.sleep(0.01)
    return round((time.monotonic() - started) * 1000)


class Background:
    """A call in a thread of its own; `result()` hands back what it returned or raised."""

    def __init__(self, call, *arguments, **named):
        def body():
            try:
                self.value = call(*arguments, **named)
            except BaseException as error:
                self.error = error

        self.value = self.error = None
        self.thread = threading.Thread(target=body, daemon=True)
        self.thread.start()

    def running(self):
        return self.thread.is_alive()

    def result(self, seconds=20):
        self.thread.join(seconds)
        expect(not self.thread.is_alive(), "did not return within %s s" % seconds)
        if self.error:
            raise self.error
        return self.value


class Loop:
    """An asyncio loop in a thread of its own; calling it with a coroutine waits for the result."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def __call__(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


def raises(kind, call, text):
    """The error of this kind that the call must raise."""
    try:
        call()
    except kind as error:
        return error
    raise Failed(text)


# The JSON lines.

class Report:
    def __init__(self, library, version, variant=""):
        self.fields = {"library": library, "version": version, "variant": variant}

    def run(self, check, call):
        """Runs one check and prints its line. A failure ends this check, not the others."""
        started = time.monotonic()
        try:
            detail = call() or "%d ms" % ((time.monotonic() - started) * 1000)
            ok = True
        except Failed as failed:
            ok, detail = False, str(failed)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            ok, detail = False, "%s: %s" % (type(error).__name__, error)
        self.line(check, ok, detail)

    def skip(self, check, reason):
        self.line(check, None, reason)

    def line(self, check, ok, detail):
        print(json.dumps(dict(self.fields, check=check, ok=ok, detail=detail)), flush=True)
