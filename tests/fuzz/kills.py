"""Every command is ended at a change of its folder that the seed draws, then run again.

The bytes must then be those of a run that nobody disturbed.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fuzz.fault_point import Fault, FaultPoint
from fuzz.material import EXPERIMENT, PREDICTING, PREPARING, TRAINING, Bench, Material, run_cases
from fuzz.nursery import Ending
from fuzz.tally import Tally, chance, faults_of

PART = "kills"

# What differs between two runs that nobody disturbed, and is put aside before bytes are compared. Nothing else is.
DIFFERENT_BY_NATURE = (
    (r".*\.json", rb'"Seconds": \{[^}]*\}', "what the steps took, in the record of a subject or scan"),
    (r".*\.json", rb'"RecordSHA256": "\w+"', "the digest of a record that holds such seconds"),
    (r".*_FLAIR\.json", rb'_desc-preproc_T1w\.json": "\w+"', "the digest of the second record of a subject"),
    (r"\.written\.json", rb'"index\.html": \[[^]]*\]', "the digest of a page that holds seconds"),
    (r"index\.html", rb"<span>[0-9]+ s</span>", "what a subject took, on its page"),
    (r"timings\.csv", rb"(?s).*", "what runs took; a run that ends while the experiment is stopped has no row"),
    (r"report\.html", rb"<p>[^<>]*: what a step took[^<>]*</p>", "the sentence about steps, without such a run"),
    (r"report\.html", rb"<td>([0-9.]+ \xc3\x97|\xe2\x80\x93)</td></tr>", "the time of a step beside another method's"),
)

_ROUND = 6  # every command is ended once a round; in the last of six rounds by Ctrl-C or SIGTERM, else by a kill
_TORN_AFTER = (0, 1, 10, 100, 1000)  # bytes


@dataclass(frozen=True)
class Victim:
    """A command that is to be ended.

    Args:
        name: Of the command.
        words: The command that writes into a folder.
        begin: Puts into the folder what must be there before.
        parallel: Whether it takes `--workers 2`.
    """

    name: str
    words: Callable[[Material, Path], tuple[str | Path, ...]]
    begin: Callable[[Material, Path], None] = lambda material, out: None
    parallel: bool = True


@dataclass(frozen=True)
class Undisturbed:
    """What a command leaves if nobody disturbs it, and how many changes that takes."""

    files: dict[str, bytes]
    changes: int


def _copy_unjudged(material: Material, out: Path) -> None:
    shutil.copytree(material.folder("run"), out)
    (out / "metrics.csv").unlink()


VICTIMS = (
    Victim("preprocess", lambda m, out: ("preprocess", m.bids, out, *PREPARING)),
    Victim(
        "predict",
        lambda m, out: (
            "predict",
            m.network,
            m.bids / "sub-0",
            m.bids / "sub-1",
            out,
            *PREDICTING,
            "--contrast",
            "flair",
        ),
    ),
    Victim("train", lambda m, out: ("train", m.bids, out, *TRAINING), parallel=False),
    Victim("evaluate", lambda m, out: ("evaluate", out, m.bids), _copy_unjudged, parallel=False),
    Victim("phantom", lambda m, out: ("phantom", out, "--subjects", "2")),
    Victim("experiment", lambda m, out: ("experiment", "smoke", m.bids, out, *EXPERIMENT)),
)


def run(seed: int, cases: int, bench: Bench) -> Tally:
    """End each command in turn, so many times in all."""
    return run_cases(PART, seed, cases, bench, run_case)


def run_case(tally: Tally, case: int, bench: Bench) -> None:
    """End a command once, run it again, compare."""
    draw = chance(tally.seed, PART, case)
    victim = VICTIMS[case % len(VICTIMS)]
    workers = draw.choice((1, 1, 2)) if victim.parallel else 1
    undisturbed = _run_undisturbed(victim, workers, bench)
    fault = _fault(case, draw.random())
    at = draw.randint(1, undisturbed.changes)
    out, counter = _begin(victim, bench)
    point = FaultPoint(out=out, counter=counter, at=at, fault=fault, torn_after=draw.choice(_TORN_AFTER))
    words = _words(victim, bench.material, out, workers)
    ended = bench.nursery.steelyard(*words, folder=bench.scratch, fault=point)
    left = sorted(contents(out))
    reached = point.changes >= at
    again = ended
    if ended.code != 0:  # it may have come to its end before the signal did, or without the worker that was killed
        again = bench.nursery.steelyard(*words, folder=bench.scratch)
    faults = [
        *(f"when ended: {fault}" for fault in _faults_of_end(ended, fault, bench.scratch)),
        *(f"when run again: {fault}" for fault in faults_of(again, bench.scratch, codes=(0,))),
        *differences(contents(out), undisturbed.files),
    ]
    means = "interrupted" if fault.startswith("SIG") else "killed"
    kind = f"{victim.name}, {means if reached else 'not reached'}"
    moment = f"{fault} at change {at} of {undisturbed.changes}, {workers} workers, code {ended.code}"
    tally.add(case, kind, faults, f"{moment}, left {left}; {ended.err[-300:]!r}; then {again.err[-300:]!r}")


@cache
def _run_undisturbed(victim: Victim, workers: int, bench: Bench) -> Undisturbed:
    """Run a command to its end and count the changes that it makes.

    The bits of a prediction depend on the number of threads, hence on the number of workers.
    """
    out, counter = _begin(victim, bench)
    words = _words(victim, bench.material, out, workers)
    ending = bench.nursery.steelyard(*words, folder=bench.scratch, fault=FaultPoint(out=out, counter=counter))
    if ending.code != 0:
        raise RuntimeError(f"steelyard {' '.join(map(str, words))}: {ending.err}")
    return Undisturbed(contents(out), counter.stat().st_size)


def _fault(case: int, number: float) -> Fault:
    """Choose by which means a case is ended."""
    turn = case // len(VICTIMS)
    if turn % _ROUND == _ROUND - 1:
        return "SIGINT" if turn % (2 * _ROUND) < _ROUND else "SIGTERM"
    if number < 0.5:
        return "kill"
    return "torn" if number < 0.8 else "worker"


def _faults_of_end(ended: Ending, fault: Fault, scratch: Path) -> Iterator[str]:
    """Yield what a command that is ended may not do: leave processes, or show a traceback on Ctrl-C."""
    interrupted = {"SIGINT": (130, 0), "SIGTERM": (143, 0)}  # 0: it was at its last change
    if fault in interrupted:
        yield from faults_of(ended, scratch, codes=interrupted[fault])
        return
    if ended.hung:
        yield "it hangs"
    if ended.orphans:
        yield f"{ended.orphans} processes outlive it"
    if "Traceback" in ended.err:  # a worker died, the command did not
        yield "a traceback is shown"


def _begin(victim: Victim, bench: Bench) -> tuple[Path, Path]:
    """Return a command's folder, as it is before, and a file to count in; the path is the same for every run."""
    folder = bench.scratch / victim.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    victim.begin(bench.material, folder / "out")
    return folder / "out", folder / "changes"


def _words(victim: Victim, material: Material, out: Path, workers: int) -> tuple[str | Path, ...]:
    words = victim.words(material, out)
    return (*words, "--workers", "2") if workers == 2 else words


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder by its path within, without what differs by nature."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: _comparable(name, path.read_bytes()) for name, path in files.items()}


def _comparable(name: str, content: bytes) -> bytes:
    for files, pattern, _ in DIFFERENT_BY_NATURE:
        if re.fullmatch(files, name):
            content = re.sub(pattern, b"", content)
    return content


def differences(files: dict[str, bytes], expected: dict[str, bytes]) -> Iterator[str]:
    """Yield each file that is missing, left over or of other bytes."""
    for name in sorted(expected.keys() | files.keys()):
        if name not in files:
            yield f"missing afterwards: {name}"
        elif name not in expected:
            yield f"left over: {name}"
        elif files[name] != expected[name]:
            yield f"other bytes: {name}"
