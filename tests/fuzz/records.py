"""Records, settings, names and output folders that no run of ours would leave, through every command."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import nibabel
import numpy as np

from fuzz.bench import Bench, run_cases
from fuzz.damaged_records import damaged_record
from fuzz.invariants import faults_of
from fuzz.material import Material
from fuzz.nursery import Ending, fresh
from fuzz.odd_inputs import odd_name, odd_out, odd_setting
from fuzz.planted import planted_link, planted_module
from fuzz.tally import Tally, chance
from fuzz.trial import Trial

PART = "records"
_SECONDS = 120.0

KINDS: tuple[Callable[[random.Random, Material, Path], Trial], ...] = (
    *(damaged_record, damaged_record, odd_out, damaged_record, odd_name, damaged_record, damaged_record, odd_setting),
    *(damaged_record, planted_link, damaged_record, odd_out, damaged_record, damaged_record, odd_name, damaged_record),
)
"""In this order, again and again."""

_RARE = 64  # every so many cases start processes that share nothing with others, which takes long


def kind_of(case: int) -> Callable[[random.Random, Material, Path], Trial]:
    """Return what is wrong in a case."""
    if case % _RARE == _RARE - 1:
        return planted_module
    return KINDS[case % len(KINDS)]


def run(seed: int, cases: int, bench: Bench) -> Tally:
    """Try so many bad inputs."""
    return run_cases(PART, seed, cases, bench, run_case)


def run_case(tally: Tally, case: int, bench: Bench) -> None:
    """Make one bad input, run the command, and see what it did."""
    root = bench.scratch / f"case-{case}"
    root.mkdir()
    kind = kind_of(case)
    trial = kind(chance(tally.seed, PART, case), bench.material, root)
    if trial.fresh:
        ending = fresh(*trial.words, folder=root, seconds=2 * _SECONDS)
    else:
        ending = bench.nursery.steelyard(*trial.words, folder=root, seconds=_SECONDS)
    faults = [*faults_of(ending, root), *_broken(trial, ending, root)]
    printed = ending.err[-500:].encode("ascii", "backslashreplace").decode()
    tally.add(case, f"{trial.words[0]}", faults, f"{kind.__name__}: {trial.change} | {printed!r}")
    shutil.rmtree(root)


def _broken(trial: Trial, ending: Ending, root: Path) -> Iterator[str]:
    """Yield what was lost, left behind or not named."""
    for path, content in trial.sources.items():
        if not path.is_file() or path.read_bytes() != content:
            yield f"an input was changed: {path.name}"
    if trial.treasures:
        left = {path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
        for path, content in trial.treasures.items():
            if content not in left:
                yield f"lost: {path.name}"
    if trial.outside is not None:
        strangers = {path.name for path in trial.outside.rglob("*")} - {path.name for path in trial.sources}
        if strangers:
            yield f"written outside of its folder: {', '.join(sorted(strangers))}"
    if ending.code == 2:
        if trial.named and not any(name in ending.err for name in trial.named):
            yield "the file at fault is not named"
        if trial.out is not None and trial.out.is_dir() and any(p.name[0] != "." for p in trial.out.iterdir()):
            yield "a command that failed to start left a trace"
    if ending.code == 0 and trial.words[0] == "predict":
        results = set(Path(trial.words[3]).glob("sub-*/anat/*.nii.gz")) - trial.treasures.keys()
        yield from _insane(sorted(results))


def _insane(results: Sequence[Path]) -> Iterator[str]:
    for path in results:
        if not np.isfinite(np.asanyarray(nibabel.load(path).dataobj)).all():
            yield f"a result is not finite: {path.name}"
