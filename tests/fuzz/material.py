"""What cases start from: small inputs of every command, created once for a campaign and copied for each case."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

import heads
import networks_by_hand
from fuzz.fault_point import FaultPoint
from fuzz.nursery import Nursery
from fuzz.tally import Budget, Tally
from steelyard.imaging.scans.volumes import Volume

SHAPE = (36, 44, 26)
AFFINE = np.array([[-5.0, 0, 0, 87.5], [0, 5.0, 0, -107.5], [0, 0, 6.0, -75.0], [0, 0, 0, 1]])
SUBJECTS = 4

PREPARING = ("--brain", "own", "--align", "skip", "--bias", "skip")
PREDICTING = ("--brain", "skip", "--bias", "skip", "--normalise", "skip")
TRAINING = ("--experiment", "smoke", "--method", "Ours-C-25", "--folds", "4", "--validate", "1")
EXPERIMENT = ("--methods", "F50-T50", "Ours-C-25", "--availability", "all", "--test-folds", "0", "--folds", "4")
AGREEING = ("Ours-C-25", "Ours-C-25+every-2")


@dataclass(frozen=True)
class Material:
    """What the cases start from; nobody writes into it. What a command left is made when it is first asked for.

    Args:
        root: The folder that holds all of it.
        nursery: Where the commands are run.
    """

    root: Path
    nursery: Nursery

    @cached_property
    def bids(self) -> Path:
        """Heads with masks; prepared enough to train on, too."""
        for number in range(SUBJECTS):
            write_head(self.root / "bids", f"{number}", seed=number)
        return self.root / "bids"

    @property
    def scan(self) -> Path:
        """The FLAIR scan of the first head."""
        return self.bids / "sub-0" / "anat" / "sub-0_FLAIR.nii.gz"

    @cached_property
    def network(self) -> Path:
        """The run of a network that marks what is bright."""
        return networks_by_hand.write_run(self.root / "network")

    def folder(self, name: str) -> Path:
        """Return the heads, the network, or what a command left: prepared, predicted, run, stopped, slices, …."""
        if name in ("bids", "network"):
            return Path(getattr(self, name))
        path = self.root / name
        if path.exists():
            return path
        if name == "stopped":
            self._stop_training(path)
        elif name == "slices":
            self._run("train", self.bids, self.root / "with-slices", *TRAINING, "--cache", path)
        elif name == "run":
            self._run("train", self.bids, path, *TRAINING)
            self._run("evaluate", path, self.bids)
        elif name == "agreement":
            methods = ("--methods", *AGREEING, *EXPERIMENT[3:])
            self._run("experiment", "smoke", self.bids, path, *methods, "--set", "epochs=3")
            self._run("agreement", path, self.bids, "--traced", "1", "--epochs", "1")
        else:
            commands: dict[str, tuple[str | Path, ...]] = {
                "prepared": ("preprocess", self.bids, path, *PREPARING),
                "predicted": ("predict", self.network, self.scan, path, *PREDICTING),
                "experiment": ("experiment", "smoke", self.bids, path, *EXPERIMENT),
            }
            self._run(*commands[name])
        return path

    def _run(self, *command: str | Path) -> None:
        ending = self.nursery.steelyard(*command, folder=self.root)
        if ending.code != 0:
            raise RuntimeError(f"steelyard {' '.join(map(str, command))}: {ending.err}")

    def _stop_training(self, out: Path) -> None:
        """Leave a run with a checkpoint: kill it ever later until one is there."""
        counter = self.root / "changes"
        for number in range(35, 100):
            point = FaultPoint(out=out, counter=counter, at=number)
            self.nursery.steelyard("train", self.bids, out, *TRAINING, folder=self.root, fault=point)
            counter.unlink()
            if (out / "checkpoint.pt").exists():
                return
            shutil.rmtree(out)
        raise RuntimeError("no kill leaves a checkpoint.")


def write_head(root: Path, name: str, *, seed: int = 0) -> Path:
    """Write a small head as a BIDS subject with masks."""
    labels = heads.tissue(SHAPE, AFFINE, size=1.0 + 0.01 * (seed % 5))
    folder = root / f"sub-{name}" / "anat"
    for number, (contrast, suffix) in enumerate((("flair", "FLAIR"), ("t1", "T1w"))):
        scan = heads.scan(contrast, labels, affine=AFFINE, seed=2 * seed + number)
        heads.save(folder / f"sub-{name}_{suffix}.nii.gz", scan)
    masks = root / "derivatives" / "manual" / f"sub-{name}" / "anat"
    heads.save(masks / f"sub-{name}_space-FLAIR_label-brain_mask.nii.gz", Volume(labels >= 3, AFFINE))
    heads.save(masks / f"sub-{name}_space-FLAIR_label-WMH_mask.nii.gz", Volume(labels == 5, AFFINE))
    return folder


Words = tuple[str | Path, ...]

TREASURE = b"written by a person, irreplaceable"
"""How the files of a person's begin."""


@dataclass
class Trial:
    """One command on one bad input.

    Args:
        words: The command.
        change: What is bad, in words.
        named: A failure must name one of these.
        sources: Files that must be as they were afterwards.
        treasures: Files of a person's; their bytes must still be somewhere in the case's folder.
        outside: A folder in which nothing may appear.
        out: Must be free of results if the command fails.
        fresh: Run it in a process that shares nothing with others.
    """

    words: Words
    change: str
    named: tuple[str, ...] = ()
    sources: dict[Path, bytes] = field(default_factory=dict)
    treasures: dict[Path, bytes] = field(default_factory=dict)
    outside: Path | None = None
    out: Path | None = None
    fresh: bool = False


def copy(source: Path, target: Path) -> Path:
    """Copy a folder and return the copy."""
    shutil.copytree(source, target)
    return target


def bury(out: Path) -> dict[Path, bytes]:
    """Put things of a person's into a folder of results, under names like ours; return them."""
    if not out.is_dir():
        return {}
    names = (
        "notes.txt",
        "figures/mine.jpg",
        "sub-0/anat/sub-0_space-FLAIR_desc-manual_label-WMH_mask.nii.gz",
        "sub-9/anat/sub-9_space-FLAIR_label-WMH_mask.nii.gz",
    )
    treasures = {}
    for number, name in enumerate(names):
        folder = (out / name).parent
        if folder.is_dir() or (name.startswith("sub-9") and (out / "sub-0").is_dir()):
            folder.mkdir(parents=True, exist_ok=True)
            treasures[out / name] = TREASURE + bytes([number])
            (out / name).write_bytes(treasures[out / name])
    return treasures


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """Where cases are run.

    Args:
        nursery: Where commands run.
        material: What they work on; it is not changed.
        scratch: A folder for files of the part.
        budget: No further case is begun when it is over.
    """

    nursery: Nursery
    material: Material
    scratch: Path
    budget: Budget


def run_cases(part: str, seed: int, cases: int, bench: Bench, run_case: Callable[[Tally, int, Bench], None]) -> Tally:
    """Run so many cases of a part, or as many as its time allows."""
    tally = Tally(part, seed)
    for case in range(cases):
        if bench.budget.over:
            break
        run_case(tally, case, bench)
    tally.seconds = bench.budget.spent
    return tally
