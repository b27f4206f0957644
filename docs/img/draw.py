#!/usr/bin/env python3
"""Draws the pictures of the book: python3 docs/img/draw.py rewrites the SVG files beside this script.

Colours follow the reader's light or dark scheme; every picture has its own background, so it is readable on any page.
"""

from html import escape
from pathlib import Path

STYLE = """
text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2937}
.small{font-size:12px}.bold{font-weight:600}.mono{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12.5px}
.dim{fill:#566072}.ok{fill:#15803d}.no{fill:#b91c1c}
.page{fill:#ffffff;stroke:#d5dae1}.box{fill:#f4f6f9;stroke:#7a8799}.blue{fill:#e3edfd;stroke:#2563eb}
.green{fill:#e2f5e8;stroke:#15803d}.red{fill:#fde8e8;stroke:#b91c1c}.amber{fill:#fdf1da;stroke:#b45309}
.line{stroke:#566072;fill:none}.lineok{stroke:#15803d;fill:none}.lineno{stroke:#b91c1c;fill:none}.dash{stroke-dasharray:5 4}
.tip{fill:#566072}.tipok{fill:#15803d}.tipno{fill:#b91c1c}
@media (prefers-color-scheme:dark){
text{fill:#e5e9f0}.dim{fill:#a3aec0}.ok{fill:#6ee7a0}.no{fill:#fca5a5}
.page{fill:#171c26;stroke:#343d4d}.box{fill:#222a37;stroke:#7f8ca1}.blue{fill:#1b2f57;stroke:#7aa7ff}
.green{fill:#143524;stroke:#5fd08f}.red{fill:#43191c;stroke:#f58a8a}.amber{fill:#3d2c10;stroke:#f0b45a}
.line{stroke:#a3aec0}.lineok{stroke:#6ee7a0}.lineno{stroke:#fca5a5}
.tip{fill:#a3aec0}.tipok{fill:#6ee7a0}.tipno{fill:#fca5a5}
}
"""


class Picture:
    def __init__(self, name, width, height, title):
        self.name, self.parts = name, []
        self.head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n<defs>'
            + "".join(
                f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
                f'<path d="M0 0.5 8 4 0 7.5z" class="{kind}"/></marker>'
                for kind in ("tip", "tipok", "tipno")
            )
            + f'</defs>\n<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>\n'
        )

    def box(self, x, y, width, height, kind="box", *lines):
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6" stroke-width="1.3"/>')
        top = y + height / 2 - (len(lines) - 1) * 9 + 5
        for at, line in enumerate(lines):
            words, style = line if isinstance(line, tuple) else (line, "bold" if at == 0 else "small dim")
            self.text(x + width / 2, top + at * 18, words, style, "middle")

    def text(self, x, y, words, style="", anchor="start"):
        self.parts.append(f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>')

    def arrow(self, points, kind="", dash=False, both=False):
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        start = f' marker-start="url(#tip{kind})"' if both else ""
        style = f"line{kind}" + (" dash" if dash else "")
        self.parts.append(f'<path d="{path}" class="{style}" stroke-width="1.5" marker-end="url(#tip{kind})"{start}/>')

    def line(self, x1, y1, x2, y2, kind="", dash=False, width=1.2):
        style = f"line{kind}" + (" dash" if dash else "")
        self.parts.append(f'<path d="M{x1} {y1} L{x2} {y2}" class="{style}" stroke-width="{width}"/>')

    def save(self):
        path = Path(__file__).parent / f"{self.name}.svg"
        path.write_text(self.head + "\n".join(self.parts) + "\n</svg>\n")


def topology():
    p = Picture("topology", 860, 420, "Clients talk RESP to any of three nodes; the nodes agree by Raft; a Redis may stand behind them")
    p.text(24, 34, "Any Redis client", "bold")
    p.box(24, 52, 176, 56, "blue", "LOCK.ACQUIRE …", "your new code")
    p.box(24, 124, 176, 56, "blue", "SET k v NX PX", "unchanged lock library")
    p.box(24, 196, 176, 56, "blue", "GET, HSET, EVAL …", "everything else")
    p.text(262, 34, "Three proxies, one Raft cluster (Tier 2, CORRECTNESS)", "bold")
    for at, role in enumerate(("leader", "follower", "follower")):
        x = 262 + at * 128
        p.box(x, 52, 112, 200, "box")
        p.text(x + 56, 74, f"node {at + 1}", "bold", "middle")
        p.text(x + 56, 91, role, "small dim", "middle")
        p.box(x + 10, 102, 92, 36, "green", ("RESP server", "small"))
        p.box(x + 10, 146, 92, 44, "green", ("lock machine", "small"), ("Raft node", "small"))
        p.box(x + 10, 198, 92, 36, "green", ("log on disk", "small"))
        if at:
            p.arrow([(x - 26, 168), (x + 10, 168)], both=True)
    for y in (80, 152, 224):
        p.arrow([(200, y), (258, 120)])
    p.box(262, 318, 368, 70, "amber", "Redis with the module or the Lua library", "optional: Tier 1, EFFICIENCY, and all other keys")
    p.arrow([(446, 254), (446, 314)], both=True)
    p.text(456, 290, "Tier 1 locks, pass-through", "small dim")
    p.box(690, 102, 146, 88, "box", "Your resource", "database, API,", "object store")
    p.arrow([(112, 254), (112, 404), (763, 404), (763, 194)], "ok")
    p.text(753, 240, "write + fence", "small ok", "end")
    p.text(753, 260, "older: refused", "small no", "end")
    p.save()


def request():
    p = Picture("request", 860, 470, "The way of LOCK.ACQUIRE through a follower to the leader and back")
    lanes = {"client": 90, "follower": 300, "leader": 530, "other": 760}
    names = {"client": ("Client", ""), "follower": ("Follower", "has the client"), "leader": ("Leader", ""), "other": ("Other follower", "")}
    for key, x in lanes.items():
        p.box(x - 75, 20, 150, 44, "blue" if key == "client" else "green", *[word for word in names[key] if word])
        p.line(x, 64, x, 452, dash=True)
    c, f, l, o = lanes.values()

    def step(number, x1, x2, y, words, kind="", where=None):
        p.arrow([(x1, y), (x2 - (6 if x2 > x1 else -6), y)], kind)
        p.text((x1 + x2) / 2 if where is None else where, y - 7, f"{number} {words}", "small", "middle")

    step(1, c, f, 98, "LOCK.ACQUIRE w 30000")
    p.box(f - 85, 110, 170, 36, "box", ("2 parse, route, request id", "small"))
    step(3, f, l, 176, "forward (not stamped)")
    p.box(l - 90, 188, 180, 50, "box", ("4 stamp the time, batch,", "small"), ("propose one entry", "small"))
    step(5, l, o, 264, "append")
    step(5, l, f, 264, "append")
    for x in (f, l, o):
        p.box(x - 45, 276, 90, 30, "amber", ("fsync", "small"))
    step(6, o, l, 334, "acknowledge")
    step(6, f, l, 334, "acknowledge")
    step(7, l, f, 368, "commit index")
    step(7, l, o, 368, "commit index")
    for x in (f, l, o):
        p.box(x - 45, 380, 90, 30, "green", ("8 apply", "small"))
    step(9, f, c, 432, "[fence, ttl]", "ok")
    p.text(l, 440, "a majority has it on disk before anybody is answered", "small dim", "middle")
    p.save()


def fence():
    p = Picture("fence", 860, 330, "Client A pauses past its lease; client B gets the lock with a higher fence; the database refuses A's late write")
    rows = {"Client A": 66, "Redfence": 136, "Client B": 206, "Database": 276}
    for name, y in rows.items():
        p.text(24, y + 5, name, "bold")
        p.line(112, y, 836, y)
    a, r, b, d = rows.values()
    p.box(150, r - 13, 190, 26, "blue", ("A holds, fence 33", "small"))
    p.box(352, r - 13, 300, 26, "green", ("B holds, fence 34", "small"))
    p.arrow([(150, a), (150, r - 15)])
    p.text(156, a - 10, "acquire → 33", "small")
    p.box(262, a - 13, 370, 26, "red", ("paused: garbage collection, a frozen VM, a slow disk", "small"))
    p.line(346, r - 34, 346, r + 34, "no", dash=True)
    p.text(340, r + 32, "lease ends", "small no", "end")
    p.arrow([(376, b), (376, r + 15)])
    p.text(384, b - 12, "acquire → 34", "small")
    p.arrow([(500, b), (500, d - 6)], "ok")
    p.text(508, b + 40, "write, fence 34", "small ok")
    p.text(500, d + 24, "accepted, remembers 34", "small ok", "middle")
    p.arrow([(690, a), (690, d - 6)], "no")
    p.text(836, a - 24, "wakes up, believes it still holds the lock", "small", "end")
    p.text(698, b + 40, "write, fence 33", "small no")
    p.text(712, d + 24, "refused: 33 < 34", "small no bold", "middle")
    p.text(836, 316, "time →", "small dim", "end")
    p.save()


def waiter():
    p = Picture("waiter", 860, 400, "The life of a waiter: asked, queued, granted, told; or it leaves the queue")
    p.box(30, 60, 170, 54, "blue", "asks", "LOCK.ACQUIRE … WAIT")
    p.box(330, 60, 170, 54, "amber", "queued", "first come, first served")
    p.box(630, 60, 200, 54, "green", "granted", "new fence, ttl starts now")
    p.box(630, 190, 200, 54, "green", "told", "[fence, ttl left]")
    p.box(630, 320, 200, 54, "box", "ended", "release, expiry, force-release")
    p.arrow([(200, 87), (326, 87)])
    p.text(263, 78, "lock is held", "small", "middle")
    p.arrow([(500, 87), (626, 87)], "ok")
    p.text(563, 78, "holder ends,", "small", "middle")
    p.text(563, 104, "first in line", "small", "middle")
    p.arrow([(115, 56), (115, 28), (730, 28), (730, 56)], "ok")
    p.text(422, 22, "lock is free and nobody waits", "small", "middle")
    p.arrow([(730, 114), (730, 186)], "ok")
    p.text(740, 154, "still held", "small")
    p.arrow([(730, 244), (730, 316)])
    p.box(30, 190, 170, 54, "red", "-DEADLOCK", "this wait would never end")
    p.arrow([(115, 114), (115, 186)], "no")
    p.box(250, 190, 140, 54, "red", "nil", "WAIT ran out")
    p.arrow([(370, 114), (330, 186)], "no")
    p.box(420, 190, 160, 54, "red", "left the queue", "client disconnected")
    p.arrow([(455, 114), (490, 186)], "no")
    p.box(420, 320, 160, 54, "red", "nil", "ended before told")
    p.arrow([(640, 114), (600, 214), (600, 347), (584, 347)], "no")
    p.text(30, 336, "A retry with the same OWNER, also on another", "small dim")
    p.text(30, 354, "connection, keeps its place in the queue,", "small dim")
    p.text(30, 372, "or gets the grant it already has.", "small dim")
    p.save()


def wound():
    p = Picture("wound", 860, 330, "An older session takes the lock from a younger one; the younger one's late write is refused by its fence")
    rows = {"Older": 66, "Redfence": 136, "Younger": 206, "Database": 276}
    for name, y in rows.items():
        p.text(24, y + 5, name, "bold")
        p.line(112, y, 836, y)
    o, r, y, d = rows.values()
    p.box(140, r - 13, 250, 26, "amber", ("the younger session holds, fence 33", "small"))
    p.box(402, r - 13, 260, 26, "green", ("the older session holds, fence 34", "small"))
    p.arrow([(140, y), (140, r + 15)])
    p.text(148, y - 14, "acquire → 33", "small")
    p.arrow([(396, o), (396, r - 15)])
    p.text(388, o - 10, "acquire … WAIT → 34", "small", "end")
    p.arrow([(396, r + 15), (396, y - 4)], "no", dash=True)
    p.text(404, y - 14, "push: lock-lost, wounded", "small no")
    p.arrow([(520, o), (520, d - 6)], "ok")
    p.text(528, o + 34, "write, fence 34", "small ok")
    p.text(520, d + 24, "accepted, remembers 34", "small ok", "middle")
    p.arrow([(700, y), (700, d - 6)], "no")
    p.text(708, y - 10, "has not read the push yet", "small")
    p.text(708, y + 40, "write, fence 33", "small no")
    p.text(712, d + 24, "refused: 33 < 34", "small no bold", "middle")
    p.text(836, 316, "time →", "small dim", "end")
    p.save()


topology()
request()
fence()
waiter()
wound()
