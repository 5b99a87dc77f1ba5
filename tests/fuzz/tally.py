"""What a command may not do, what a part of the campaign found, and its counts as a table."""

import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Finding:
    """One broken promise, with all that reproduces it.

    Args:
        part: The part of the campaign.
        seed: Of the campaign.
        case: The number of the case.
        fault: What was promised and did not hold.
        detail: The command, the change to the input, the end of what was printed.
    """

    part: str
    seed: int
    case: int
    fault: str
    detail: str

    def __str__(self) -> str:
        return f"{self.part} --seed {self.seed} --case {self.case}: {self.fault}\n    {self.detail}"


@dataclass
class Tally:
    """Counts of one part.

    Args:
        part: Its name.
        seed: Of the campaign.
        counts: How many cases of each kind were run.
        findings: What broke.
        seconds: How long it took.
    """

    part: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        """How many cases were run."""
        return self.counts.total()

    def add(self, case: int, kind: str, faults: Sequence[str], detail: str) -> None:
        """Count a case of some kind, and what broke in it."""
        self.counts[kind] += 1
        self.findings += [Finding(self.part, self.seed, case, fault, detail) for fault in faults]

    def as_json(self) -> dict[str, Any]:
        """Return the counts, without times and places: a seed gives the same on every machine."""
        return {"cases": self.cases, "findings": len(self.findings), "kinds": dict(sorted(self.counts.items()))}


@dataclass
class Budget:
    """How long a part may go on.

    Args:
        seconds: No case is begun after so many; none for no limit.
    """

    seconds: float | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.seconds is not None and self.spent > self.seconds


def chance(seed: int, part: str, case: int) -> random.Random:
    """Return the random numbers of one case; they do not depend on the cases before it."""
    return random.Random(f"{seed} {part} {case}")


MARK = "campaign"
"""Marks the place for the table on the page."""

TITLES = {
    "headers": "mutated NIfTI files, read by the readers and by `predict` and `preprocess`",
    "records": "damaged records, odd settings, names, links and output folders, through every command",
    "kills": "commands ended at a change of their folder, run again, compared byte for byte",
    "library": "random models, optimizers and batches through the balancer",
}


def as_markdown(counts: Mapping[str, Any]) -> str:
    """Return a table of the parts and one of their kinds of cases.

    Args:
        counts: What `--out` writes.
    """
    lines = [
        f"Seed {counts['seed']}.\n",
        "| part | what is tried | cases | findings |",
        "| --- | --- | ---: | ---: |",
    ]
    parts = [(name, counts["parts"][name]) for name in TITLES if name in counts["parts"]]
    for name, part in parts:
        lines.append(f"| {name} | {TITLES[name]} | {part['cases']} | {part['findings']} |")
    lines.append("")
    for name, part in parts:
        kinds = ", ".join(f"{number} {kind}" for kind, number in part["kinds"].items())
        lines.append(f"- **{name}**: {kinds}.")
    return "\n".join(lines) + "\n"
