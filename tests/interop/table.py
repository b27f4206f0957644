"""The results as text, as Markdown and as the table in docs/compatibility.md. Used by `run`."""

import re

# Column -> the checks it shows. What is not named here counts as one of the library's own.
COLUMNS = [
    ("acquire", ["acquire"]),
    ("contention", ["contention"]),
    ("extend", ["extend"]),
    ("expiry", ["expiry"]),
    ("stranger", ["stranger"]),
    ("waiting", ["waiting"]),
    ("LOCK.ACQUIRE", ["lock.acquire"]),
    ("exclusion", ["exclusion"]),
    ("leader killed", ["leader killed: holding", "leader killed: waiting", "leader killed: working"]),
]
SHARED = {check for _, checks in COLUMNS for check in checks}
HEAD = ["language", "library", "version"] + [name for name, _ in COLUMNS] + ["its own"]
BEGIN, END = "<!-- interop -->", "<!-- /interop -->"


def mark(checks):
    """yes: all passed; NO: one failed; -: the library has no such thing."""
    outcomes = [check["ok"] for check in checks if check["ok"] is not None]
    return "-" if not outcomes else "yes" if all(outcomes) else "NO"


def rows(jobs):
    """One row a language, library, version and variant."""
    found = []
    for (language, _), (checks, faults) in sorted(jobs.items()):
        groups = {}
        for check in checks:
            groups.setdefault((check["library"], check.get("version") or "?", check.get("variant") or ""), []).append(check)
        for (library, version, variant), group in groups.items():
            cells = [mark([check for check in group if check["check"] in names]) for _, names in COLUMNS]
            own = [check for check in group if check["check"] not in SHARED and check["ok"] is not None]
            passed = sum(check["ok"] for check in own)
            cells.append(f"{passed} of {len(own)}" if own else "-")
            if faults:
                cells = ["NO" if cell == "-" else cell for cell in cells]
            found.append([language, library + (f" ({variant})" if variant else ""), version] + cells)
    return found


def markdown(lines):
    return "\n".join("| " + " | ".join(line) + " |" for line in [HEAD, ["---"] * len(HEAD)] + lines)


def plain(lines):
    widths = [max(len(line[i]) for line in [HEAD] + lines) for i in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [HEAD] + lines)


def report(lines, jobs, skips):
    """Everything, for a closer look."""
    text = ["# Interop", "", markdown(lines), "", "| language | library | check | result | detail |", "| --- | --- | --- | --- | --- |"]
    for (language, library), (checks, faults) in sorted(jobs.items()):
        for check in checks:
            result = {True: "ok", False: "FAILED", None: "skipped"}[check["ok"]]
            detail = str(check.get("detail") or "").replace("|", "\\|").replace("\n", " ")
            text.append(f"| {language} | {library} | {check['check']} | {result} | {detail} |")
        for fault in faults:
            text.append(f"| {language} | {library} | - | FAILED | {fault} |")
    text += [f"\nSkipped: {name}: {reason}" for name, reason in skips]
    return "\n".join(text) + "\n"


def update_docs(path, lines, languages):
    """Rewrites the table between the markers; rows of languages that did not run this time stay."""
    text = path.read_text()
    block = re.search(re.escape(BEGIN) + r"\n(.*?)" + re.escape(END), text, re.S)
    if not block:
        raise SystemExit(f"{path} has no markers {BEGIN} … {END}")
    kept = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.group(1).splitlines() if line.startswith("| ")]
    kept = [row for row in kept if len(row) == len(HEAD) and row[0] not in languages | {"language", "---"}]
    block_text = f"{BEGIN}\n{markdown(sorted(kept + lines))}\n{END}"
    path.write_text(text[: block.start()] + block_text + text[block.end():])
