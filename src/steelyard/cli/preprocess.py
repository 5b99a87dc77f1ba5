"""`steelyard preprocess`: from raw scans to training data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from steelyard.cli.command import Command, default, say
from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.imaging.datasets.subjects import Dataset, Remark
    from steelyard.imaging.preprocess import JobResult


@dataclass(frozen=True)
class Preprocess(Command):
    """Turn raw scans into training data: BIDS in, derivatives out.

    T1 is aligned to FLAIR, the bias field is removed, the skull stripped, and intensities are normalised.
    Give the command again to resume a run that was stopped; subjects that did not change are not done again. The
    folder's `index.html` shows every subject, outliers first. Exit code 2 if any subject failed.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BIDS")]
    """The BIDS dataset, or a plain folder if --flair or --t1 give a pattern."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The folder for the derivatives; new, empty, or of an earlier run."""
    workers: int = 1
    """The number of subjects that are processed at a time."""
    align: Literal["auto", "always", "skip"] = "auto"
    """auto: register T1 to FLAIR unless they are aligned already; skip: trust the headers."""
    bias: Literal["n4", "skip"] = "n4"
    """How the bias field is removed."""
    brain: Literal["deepbet", "own", "skip"] = "deepbet"
    """own: use the supplied brain masks, deepbet where there is none; skip: keep the whole head."""
    normalise: Literal["whitestripe", "skip"] = "whitestripe"
    """How intensities are normalised."""
    empty_wmh: bool = False
    """Accept empty lesion masks: subjects without lesions."""
    choose: Annotated[tuple[str, ...], default("none")] = ()
    """BIDS entities that choose among several scans, such as run-1 or acq-3D."""
    flair: Annotated[str | None, default("none, BIDS is a dataset")] = None
    """Plain folder: the FLAIR scans' names, such as '{subject}_FLAIR.nii.gz'."""
    t1: Annotated[str | None, default("none, BIDS is a dataset")] = None
    """Plain folder: the T1w scans' names."""
    wmh: Annotated[str | None, default("none")] = None
    """Plain folder: the lesion masks' names."""
    brain_mask: Annotated[str | None, default("none")] = None
    """Plain folder: the brain masks' names."""
    largest_scan: float = 150.0
    """Scans with more million voxels than this are refused; 512×512×400 are 105 million. Memory grows with it."""

    def run(self) -> int:
        """List the subjects, process them, say what failed."""
        from steelyard.cli.progress import sum_up, track, watch
        from steelyard.imaging.preprocess import Settings, preprocess
        from steelyard.imaging.scans.nifti import million_voxels

        settings = Settings(
            align=self.align,
            bias=self.bias,
            brain=self.brain,
            normalise=self.normalise,
            empty_wmh=self.empty_wmh,
            most_voxels=million_voxels(self.largest_scan),
        )
        dataset = self._read()
        for remark in dataset.faults:
            say(f"failed: {remark}")
        for line in _summary(dataset.notes):
            say(line)
        printed = {str(remark) for remark in dataset.faults}
        seen: list[JobResult] = []
        total = len(dataset.subjects) + len(dataset.faults)
        outcomes = preprocess(dataset, self.out, settings=settings, workers=self.workers)
        track(watch(outcomes, seen), total=total, title="Preprocessing")
        return sum_up(seen, self.out, ready=f"of {total} subjects are ready", printed=printed)

    def _read(self) -> "Dataset":
        from steelyard.imaging.datasets.bids import read_bids
        from steelyard.imaging.datasets.pairs import Patterns, read_pairs

        optional = () if self.brain == "own" else ("brain",)
        if self.flair is None and self.t1 is None:
            if self.wmh is not None or self.brain_mask is not None:
                raise UserError("--wmh and --brain-mask are for plain folders; they need --flair or --t1 as well.")
            return read_bids(self.source, choose=self.choose, optional=optional)
        if self.choose:
            raise UserError("--choose is for BIDS datasets; with --flair or --t1 the patterns say which file is meant.")
        patterns = Patterns(flair=self.flair, t1=self.t1, wmh=self.wmh, brain=self.brain_mask)
        return read_pairs(self.source, patterns, optional=optional)


def _summary(notes: "Sequence[Remark]") -> Iterator[str]:
    """Yield one line per kind of note, however many subjects it holds for."""
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(note.text, []).append(note.subject)
    for text, subjects in kinds.items():
        if len(subjects) == 1:
            yield f"{subjects[0]}: {text}"
        else:
            examples = ", ".join(subjects[:3])
            if len(subjects) > 3:
                examples += ", …"
            yield f"{len(subjects)} subjects have {text}: {examples}"
