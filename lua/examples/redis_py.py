"""The Lua library from redis-py: a lock with waiting and fencing. `redis_py.py PORT`, with the library loaded."""
import sys
import time
import uuid

import redis


class Lock:
    """One acquisition of one resource. `fence` is None until it is granted."""

    def __init__(self, client, resource, ttl_ms):
        self.client, self.resource, self.ttl_ms = client, resource, ttl_ms
        self.owner, self.fence = uuid.uuid4().hex, None

    def acquire(self, wait_ms=0):
        end = time.monotonic() + wait_ms / 1000
        left_ms = wait_ms
        while True:
            reply = self.client.fcall(
                "lock_acquire", 1, self.resource, self.ttl_ms, "WAIT", left_ms, "OWNER", self.owner)
            if reply and reply[0] == b"queued":
                reply = self._listen(wake_key=reply[2], poll_ms=reply[3])
                left_ms = int((end - time.monotonic()) * 1000)
                if reply is None and left_ms > 0:
                    continue
                reply = reply or self.client.fcall("lock_cancel", 1, self.resource, self.owner)
            self.fence = reply[0] if reply else None
            return self.fence is not None

    def _listen(self, wake_key, poll_ms):
        woken = self.client.blpop([wake_key], timeout=poll_ms / 1000)
        if woken is None or woken[1] == b"again":
            return None
        ttl, fence = map(int, woken[1].split())
        return [fence, ttl]

    def release(self):
        ok, reason = self.client.fcall("lock_release", 1, self.resource, self.fence)
        return ok == 1, reason.decode()


def main():
    client = redis.Redis(port=int(sys.argv[1]))
    first, second = Lock(client, "invoice:7", 400), Lock(client, "invoice:7", 5000)
    print("first:", first.acquire())
    print("second, not waiting:", second.acquire())
    print("second, waiting until the first one's ttl runs out:", second.acquire(wait_ms=5000))
    print("the fence has grown:", second.fence > first.fence)
    print("second writes:", client.fcall("fence_call", 1, "invoice:7", second.fence, "SET", "total", 2))
    try:
        client.fcall("fence_call", 1, "invoice:7", first.fence, "SET", "total", 1)
    except redis.ResponseError as error:
        print("first writes, too late:", str(error).split()[0])
    print("total:", client.get("total"))
    print("first releases:", first.release())
    print("second releases:", second.release())


main()
