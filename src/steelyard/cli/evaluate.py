"""`steelyard evaluate`: how well a trained network does on each domain."""

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from steelyard.cli.command import Command, say
from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.imaging.bids import Dataset
    from steelyard.imaging.segmentation.evaluation import Score
    from steelyard.imaging.segmentation.run import RunDirectory

_SHOWN = (
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
    """Judge a trained network: every metric per subject and domain as CSV, the means on the terminal.

    On the dataset that the run was trained on, its test subjects are judged; on any other, every subject with a
    lesion mask.
    """

    run_directory: Annotated[Path, tyro.conf.Positional]
    """The run that `steelyard train` left."""
    data: Annotated[Path, tyro.conf.Positional]
    """The derivatives that `steelyard preprocess` left."""
    subjects: Literal["test", "validate", "train", "all"] = "test"
    """Which part of the run's own dataset."""
    threshold: float = 0.5
    """A voxel is a lesion if its probability is greater."""
    out: Path | None = None
    """The CSV file; RUN/metrics.csv if not said, or RUN/metrics-NAME.csv for a dataset called NAME."""
    model: str | None = None
    """The network's import path, if it is not one of ours: needed, because it is code."""

    def run(self) -> int:
        """Judge, write, show."""
        from steelyard.cli.progress import track
        from steelyard.imaging.segmentation.data import read_prepared
        from steelyard.imaging.segmentation.evaluation import evaluate
        from steelyard.imaging.segmentation.run import RunDirectory
        from steelyard.imaging.writing import write_text

        if not 0 <= self.threshold < 1:
            raise UserError(f"threshold must be at least 0 and below 1; got {self.threshold}.")
        run = RunDirectory(self.run_directory)
        config = run.config
        network = run.network(model=self.model)
        dataset = read_prepared(self.data)
        parts, own = self._parts(run, dataset)
        scores: list[Score] = []
        found = evaluate(network, dataset, config=config, parts=parts, threshold=self.threshold)
        total = sum(
            len({"flair", "t1"} & {name for name in config.domains if getattr(subject, name) is not None})
            for subject in dataset.subjects
            if subject.key in parts and subject.wmh is not None
        )
        track(_kept(found, scores), total=total, title="Evaluating")
        if not scores:
            raise UserError(f"{self.data}: no subject with a lesion mask is left to judge.")
        out = self.out or self.run_directory / self._name(own)
        write_text(out, _as_csv([score.row() for score in scores]))
        _show(scores)
        say(f"{out} has every metric per subject; L-rec and L-F1 are lesion-wise, HD95 is in mm")
        return 0

    def _parts(self, run: "RunDirectory", dataset: "Dataset") -> tuple[dict[str, str], bool]:
        """Return whom to judge and what each was to the run; and whether the dataset is the run's own."""
        from steelyard.imaging.segmentation.data import load_labelled

        config = run.config
        names = [subject.key for subject in dataset.subjects if subject.wmh is not None]
        split, seen = run.split, {digest: name for name, digest in run.digests.items()}
        held = [domain for domain in config.domains if any(getattr(s, domain, None) for s in dataset.subjects)]
        digests = load_labelled(dataset, config.slices, domains=held).digests
        known = {name: split.part_of(seen.get(digests[name], "")) or "unseen" for name in names}
        if set(known.values()) == {"unseen"}:
            if set(names) & set(seen.values()):
                say("other scans than the run has seen, under the same names: everyone is judged, as unseen")
            return known, False
        chosen = {name: part for name, part in known.items() if self.subjects in ("all", part)}
        if not chosen:
            raise UserError(f"{run.path}: the run has no subjects to {self.subjects}; --subjects all takes everyone.")
        return chosen, True

    def _name(self, own: bool) -> str:
        if not own:
            return f"metrics-{self.data.resolve().name}.csv"
        return "metrics.csv" if self.subjects == "test" else f"metrics-{self.subjects}.csv"


def _kept(found: "Iterable[Score]", scores: "list[Score]") -> Iterator[str]:
    for score in found:
        scores.append(score)
        yield f"{score.subject} {score.domain}: DSC {score.slices.dsc:.3f}"


def _as_csv(rows: list[dict[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _show(scores: "list[Score]") -> None:
    from rich.console import Console
    from rich.table import Table

    from steelyard.imaging.segmentation.evaluation import summarise

    # HD95 in mm, AVD: absolute volume difference, L: lesion-wise.
    table = Table("domain", "n", *(title for _, title, _ in _SHOWN))
    for row in summarise(scores):
        cells = [f"{row[name]:{form}}" for name, _, form in _SHOWN]
        table.add_row(str(row["domain"]), str(row["subjects"]), *cells)
    Console().print(table)
