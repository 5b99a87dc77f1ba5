"""`steelyard predict`: from scans to lesions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from steelyard.cli.command import Command, default
from steelyard.errors import UserError
from steelyard.imaging.networks.accelerator import Accelerator

if TYPE_CHECKING:
    from steelyard.processes.workers import JobResult


@dataclass(frozen=True)
class Predict(Command):
    """Find the white matter hyperintensities of FLAIR or T1 scans.

    The scans may be whole heads or stripped. OUT gets, for each scan, a mask and a probability map on the scan's own
    grid and a picture, and for all of them `volumes.csv` and `index.html`; look at the page first. Give the command
    again to resume; scans that did not change are not done again. Exit code 2 if any scan failed.
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The run folder of a trained network."""
    paths: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="SCAN… OUT", help_behavior_hint="(required)"),
    ]
    """NIfTI files, folders or BIDS datasets, and last the folder for the results: new, empty, or of an earlier run."""
    threshold: float = 0.5
    """A voxel is a lesion if its probability is greater."""
    smallest_ml: float = 0.0
    """Lesions of less volume are dropped."""
    contrast: Literal["flair", "t1", "both"] = "both"
    """Which scans of a folder are used; also the contrast of files whose names do not say."""
    brain: Literal["auto", "deepbet", "skip"] = "auto"
    """skip: the scans are stripped already; auto: decide for each scan."""
    bias: Literal["n4", "skip"] = "n4"
    """How the bias field is removed."""
    normalise: Literal["whitestripe", "skip"] = "whitestripe"
    """How intensities are normalised."""
    model: Annotated[str | None, default("none; steelyard's own networks need no path")] = None
    """The import path of a network that is not steelyard's own: its code runs, so trust it."""
    workers: int = 1
    """The number of scans that are processed at a time."""
    accelerator: Accelerator = "auto"
    """What the network runs on. auto: cuda if this machine has it, otherwise cpu. cuda and mps are untested."""
    largest_scan: float = 150.0
    """Scans with more million voxels than this are refused; 512×512×400 are 105 million. Memory grows with it."""

    def run(self) -> int:
        """List the scans, process them, say what failed."""
        from steelyard.cli.progress import sum_up, track, watch
        from steelyard.imaging.predict import Options, find_scans, predict
        from steelyard.imaging.scans.nifti import million_voxels

        if len(self.paths) < 2:
            raise UserError("at least one scan and the folder for the results are needed: RUN SCAN… OUT.")
        *sources, out = self.paths
        options = Options(
            threshold=self.threshold,
            smallest_ml=self.smallest_ml,
            brain=self.brain,
            bias=self.bias,
            normalise=self.normalise,
            most_voxels=million_voxels(self.largest_scan),
            accelerator=self.accelerator,
        )
        scans = find_scans(sources, contrast=self.contrast)
        seen: list[JobResult] = []
        outcomes = predict(self.run_folder, scans, out, options=options, model=self.model, workers=self.workers)
        track(watch(outcomes, seen), total=len(scans), title="Predicting")
        return sum_up(seen, out, ready=f"of {len(scans)} scans are done")
