"""What must hold however a command ends."""

import re
from collections.abc import Iterator
from pathlib import Path

from fuzz.nursery import Ending

CANARY = "executed"
"""A file of this name appears where something that a file carried was run."""

_CODES = (0, 2)
_UNEXPECTED = re.compile(r"unexpected [A-Z]\w+: .*")  # a traceback in a worker process, put into one line
_WARNING = re.compile(r"^.*\b\w*Warning: .*$", re.MULTILINE)


def faults_of(ending: Ending, root: Path, *, codes: tuple[int, ...] = _CODES) -> Iterator[str]:
    """Yield what a command did that none may do.

    Args:
        ending: How it ended.
        root: The folder of the case.
        codes: The exit codes that it may end with.
    """
    if ending.hung:
        yield f"it hangs: not done after {ending.seconds:.0f} s"
        return
    if "Traceback (most recent call last)" in ending.err or _UNEXPECTED.search(ending.err):
        yield f"traceback: {_last_error(ending.err)}"
    elif ending.code not in codes:
        yield f"exit code {ending.code}"
    if ending.code == 2 and not ending.err.strip():
        yield "exit code 2 and no line that says why"
    if (warning := _WARNING.search(ending.err)) is not None:
        yield f"a warning is shown: {warning[0][:150]}"
    for line in (ending.out + ending.err).split("\n"):
        if not _is_plain(line):
            yield f"a printed line holds control characters or broken letters: {line[:150]!a}"
            break
    if ending.orphans:
        yield f"{ending.orphans} processes outlive it"
    if any(root.rglob(CANARY)):
        yield "something that a file carried was run"


def _is_plain(line: str) -> bool:
    return line.replace("\t", " ").isprintable()


def _last_error(text: str) -> str:
    """The line that names the exception."""
    unexpected = _UNEXPECTED.search(text)
    if unexpected is not None:
        return unexpected[0][:200]
    lines = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit|Loop)?\b.*", line)]
    errors = [line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or [""])[-1][:200]
