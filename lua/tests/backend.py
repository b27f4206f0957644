"""The contract's commands over either form of the library, and the waiting protocol of lua/README.md."""
import itertools
import time

from resp import ReplyError

COUNTED = ("LOCK.MACQUIRE", "LOCK.MRELEASE", "LOCK.MCANCEL")
KEYLESS = ("LOCK.SCAN", "LOCK.SESSION", "LOCK.NOTIFY")
NAMES = itertools.count(1)


class Backend:
    """One connection that speaks LOCK.* through functions or through the script."""

    def __init__(self, server, form, protocol, sha):
        self.server, self.form, self.protocol, self.sha = server, form, protocol, sha
        self.client = server.client(protocol)

    def another(self):
        return Backend(self.server, self.form, self.protocol, self.sha)

    def other_form(self):
        form = "script" if self.form == "function" else "function"
        return Backend(self.server, form, self.protocol, self.sha)

    def close(self):
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def words(self, command, *args):
        """A command as in the contract -> what is sent."""
        command = command.upper()
        if command in KEYLESS:
            keys, rest = [], list(args)
        elif command == "LOCK.MRELEASE":
            count = int(args[0])
            keys, rest = list(args[1:2 * count:2]), list(args[2:2 * count + 1:2]) + list(args[2 * count + 1:])
        elif command in COUNTED:
            count = int(args[0])
            keys, rest = list(args[1:count + 1]), list(args[count + 1:])
        else:
            keys, rest = list(args[:1]), list(args[1:])
        return self.raw(command, keys, rest)

    def raw(self, command, keys, rest):
        if self.form == "function":
            return ["FCALL", command.lower().replace(".", "_"), len(keys), *keys, *rest]
        return ["EVALSHA", self.sha, len(keys), *keys, command, *rest]

    def __call__(self, command, *args):
        return self.client.send(*self.words(command, *args))

    def must(self, command, *args):
        reply = self(command, *args)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def redis(self, *words):
        return self.client.must(*words)

    def info(self, resource):
        pairs = self.pairs(self.must("LOCK.INFO", resource))
        return dict(pairs), [key for key, _ in pairs]

    def pairs(self, reply):
        """Names and values of a map, in the order they came."""
        if self.protocol == 3:
            assert isinstance(reply, dict), reply
            pairs = reply.items()
        else:
            assert isinstance(reply, list), reply
            pairs = zip(reply[::2], reply[1::2])
        return [(key.decode(), value) for key, value in pairs]

    def wait(self, command, *args, wait_ms, owner):
        """Acquires as a blocking client would: asks, listens, asks again, and at the end cancels."""
        end = time.monotonic() + wait_ms / 1000
        left_ms = wait_ms
        while True:
            reply = self.must(command, *args, "WAIT", left_ms, "OWNER", owner)
            if reply is None or reply[0] != b"queued":
                return reply
            _, _, wake_key, poll_ms = reply
            assert 1 <= poll_ms <= 1000, poll_ms
            woken = self.redis("BLPOP", wake_key, poll_ms / 1000)
            if isinstance(woken, list) and woken[1] != b"again":
                ttl, *fences = map(int, woken[1].split())
                return [fences[0], ttl] if command == "LOCK.ACQUIRE" else [fences, ttl]
            left_ms = int((end - time.monotonic()) * 1000)
            if left_ms <= 0:
                return self.cancel(command, args, owner)

    def cancel(self, command, args, owner):
        if command == "LOCK.ACQUIRE":
            return self.must("LOCK.CANCEL", args[0], owner)
        return self.must("LOCK.MCANCEL", *args[:int(args[0]) + 1], owner)


def fresh(stem="r"):
    """A name no other test uses."""
    return f"{stem}:{next(NAMES)}"


def side_keys(resource):
    form = ":%s" if "}" in resource else "{%s}"
    return [resource] + [prefix + form % resource for prefix in ("__fence__", "__hwm__", "__wait__")]
