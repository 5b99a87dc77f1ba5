"""From a trained run and a dataset to a table of scores."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.atomic import write_text
from steelyard.files.records import as_csv
from steelyard.imaging.datasets.domains import contrast_of
from steelyard.imaging.datasets.subjects import Dataset
from steelyard.imaging.evaluate.evaluation import Score, domain_names, evaluate
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import METRICS, RunFolder
from steelyard.imaging.train.data import load_labelled

SCORES = "subject,domain,part,dsc,"
"""How every table of scores begins."""


def whom_to_judge(run: RunFolder, dataset: Dataset, *, part: str = "test") -> tuple[dict[str, str], bool]:
    """Return whom to judge and what each was to the run; and whether the dataset is the run's own.

    Args:
        run: Trained.
        dataset: The one it was trained on, of which one part is judged, or another, of which everyone is.
        part: `train`, `validate`, `test` or `all`.

    Raises:
        UserError: The run has no such subjects.
    """
    split, seen = run.split, {digest: name for name, digest in run.digests.items()}
    names = [subject.key for subject in dataset.subjects if subject.wmh is not None]
    digests = _digests(run.config, dataset)
    known = {name: split.part_of(seen.get(digests.get(name, ""), "")) or "unseen" for name in names}
    if set(known.values()) == {"unseen"}:
        return known, False
    chosen = {name: role for name, role in known.items() if part in ("all", role)}
    if not chosen:
        expected = getattr(split, part)
        if not expected:
            raise UserError(f"{run.path}: the run has no subjects to {part}; --subjects all takes everyone.")
        raise UserError(
            f"{dataset.root}: its scans of {expected[0]}, which {run.path} has to {part}, are not those of the split; "
            "--subjects all takes everyone."
        )
    return chosen, True


def _digests(config: TrainingConfig, dataset: Dataset) -> dict[str, str]:
    """Return the digests of everyone with a scan that the run could serve, whatever scanner it is of."""
    served = dict.fromkeys(map(contrast_of, config.domains))
    there = [name for name in served if any(getattr(s, name, None) and s.wmh for s in dataset.subjects)]
    return load_labelled(dataset, config.slices, domains=there).digests


def count_scans(config: TrainingConfig, dataset: Dataset, parts: Mapping[str, str]) -> int:
    """Return how many scans there are to judge."""
    named = domain_names(dataset, config.domains, parts)
    return sum(len(named[subject.key]) for subject in dataset.subjects if subject.key in named)


def metrics_name(data: Path, *, part: str | None) -> str:
    """Return what to call the table of scores in a run directory; no two datasets or parts share a name.

    Args:
        data: The dataset's folder. Folders are often called alike, or as a part is: the name tells where each lies.
        part: Of the run's own dataset, which was judged; None for another dataset.

    >>> metrics_name(Path("data"), part="test"), metrics_name(Path("data"), part="all")
    ('metrics.csv', 'metrics-all.csv')
    """
    if part is not None:
        return METRICS if part == "test" else f"metrics-{part}.csv"
    place = data.resolve()
    mark = hashlib.sha256(os.fsencode(place)).hexdigest()[:8]
    return f"metrics-{place.name}-{mark}.csv"


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """Write scores as a table, a row each."""
    write_text(path, as_csv([score.row() for score in scores]))


def judge_test_subjects(run: RunFolder, dataset: Dataset, *, model: str | None = None) -> None:
    """Write metrics.csv of a run's own dataset, without asking again whether it is the run's own.

    Raises:
        UserError: No test subject is left to judge.
    """
    parts = dict.fromkeys(run.split.test, "test")
    scores = list(evaluate(run.network(model=model), dataset, config=run.config, parts=parts))
    if not scores:
        raise UserError(f"{dataset.root}: no test subject has a scan and a lesion mask.")
    write_scores(run.path / METRICS, scores)
