"""Small inputs of every command, made once for a campaign and copied for each case."""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

import heads
import networks_by_hand
from fuzz.fault_point import FaultPoint
from fuzz.nursery import Nursery
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
