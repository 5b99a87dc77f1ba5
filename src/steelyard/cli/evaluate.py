"""`steelyard evaluate`: how well a trained network does on each domain."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from steelyard.cli.command import Command, default, plain, say
from steelyard.imaging.networks.accelerator import Accelerator

if TYPE_CHECKING:
    from steelyard.imaging.evaluate.evaluation import Score

_COLUMNS = (
    ("dsc", "DSC", ".3f"),
    ("auc", "AUC", ".3f"),
    ("ppv", "PPV", ".3f"),
    ("tpr", "TPR", ".3f"),
    ("hd95", "HD95", ".1f"),
    ("volume_difference", "AVD%", ".1f"),
    ("lesion_recall", "L-rec", ".3f"),
    ("lesion_f1", "L-F1", ".3f"),
)


@dataclass(frozen=True)
class Evaluate(Command):
    """Judge a trained network: every metric per subject and domain.

    The metrics are written as CSV, and the means are printed.
    On the dataset that the run was trained on, its test subjects are judged; on any other, every subject with a
    lesion mask.
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The run folder of a trained network."""
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The output folder of `steelyard preprocess`."""
    subjects: Literal["test", "validate", "train", "all"] = "test"
    """Which part of the run's own dataset."""
    threshold: float = 0.5
    """A voxel is a lesion if its probability is greater."""
    out: Annotated[Path | None, default("a table in RUN")] = None
    """The CSV file. In RUN it is called metrics.csv, metrics-PART.csv for another part than the test subjects, or
    metrics-NAME-MARK.csv for another dataset called NAME, with a mark of its path. An existing file is replaced only if
    it is such a table."""
    accelerator: Accelerator = "auto"
    """What the network runs on. auto: cuda if this machine has it, otherwise cpu. cuda and mps are untested."""
    model: Annotated[str | None, default("none; steelyard's own networks need no path")] = None
    """The import path of a network that is not steelyard's own: its code runs, so trust it."""

    def run(self) -> int:
        """Judge, write, print."""
        from steelyard.cli.progress import track
        from steelyard.experiments.run_evaluation import Judging, prepare_evaluation

        judging = Judging(part=self.subjects, threshold=self.threshold, accelerator=self.accelerator)
        evaluation = prepare_evaluation(self.run_folder, self.data, judging, out=self.out, model=self.model)
        scores: list[Score] = []
        track(_collect(evaluation.run(), scores), total=evaluation.scans, title="Evaluating")
        _show(scores)
        say(f"{evaluation.out} has every metric per subject; L-rec and L-F1 are lesion-wise, HD95 is in mm")
        return 0


def _collect(results: "Iterable[Score]", scores: "list[Score]") -> Iterator[str]:
    """Collect scores, and yield a line for each."""
    for score in results:
        scores.append(score)
        yield f"{score.subject} {score.domain}: DSC {score.slices.dsc:.3f}"


def _show(scores: "list[Score]") -> None:
    from rich.console import Console
    from rich.table import Table

    from steelyard.imaging.evaluate.evaluation import summarise

    # HD95 in mm, AVD: absolute volume difference, L: lesion-wise.
    table = Table("domain", "n", *(title for _, title, _ in _COLUMNS))
    for row in summarise(scores):
        cells = [f"{row[name]:{form}}" for name, _, form in _COLUMNS]
        table.add_row(plain(str(row["domain"])), str(row["subjects"]), *cells)
    Console().print(table)
