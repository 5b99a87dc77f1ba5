"""Records, settings, names and output folders that no run of steelyard would leave, through every command."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import nibabel
import numpy as np

from fuzz import mutations, nifti
from fuzz.material import (
    EXPERIMENT,
    PREDICTING,
    PREPARING,
    TRAINING,
    Bench,
    Material,
    Trial,
    Words,
    bury,
    copy,
    run_cases,
)
from fuzz.nursery import Ending, fresh
from fuzz.odd_inputs import odd_name, odd_out, odd_setting, planted_link, planted_module
from fuzz.tally import Tally, chance, faults_of


@dataclass(frozen=True)
class Record:
    """A file that a command reads.

    Args:
        path: Within the case's folder.
        words: The command.
        copies: What the case's folder holds: copies of the material.
        prepare: Adds what is missing in the material.
    """

    path: str
    words: Callable[[Path], Words]
    copies: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda root: None


def _write_mark(root: Path) -> None:
    """An unfinished phantom whose only head is there."""
    out = root / "phantom"
    truth = out / "derivatives" / "truth" / "sub-001" / "anat"
    truth.mkdir(parents=True)
    (out / "sub-001" / "anat").mkdir(parents=True)
    mark = {"seed": 0, "scanner": "standard-3t", "version": version("steelyard")}
    (out / ".unfinished-phantom.json").write_text(json.dumps(mark))
    for label in ("WMH", "brain"):
        (truth / f"sub-001_space-FLAIR_label-{label}_mask.json").write_text(json.dumps({"VolumeMl": 12.5}))


def _write_groups(root: Path) -> None:
    rows = ["participant_id\tscanner\tage", *(f"sub-{number}\t{'AB'[number % 2]}\t60" for number in range(4))]
    (root / "bids" / "participants.tsv").write_text("\n".join(rows) + "\n")
    description = {"Name": "heads", "BIDSVersion": "1.10.0", "GeneratedBy": [{"Name": "somebody"}]}
    (root / "bids" / "dataset_description.json").write_text(json.dumps(description))


def _write_description(root: Path) -> None:
    description = {"Name": "masks", "BIDSVersion": "1.10.0", "GeneratedBy": [{"Name": "somebody", "Version": "1"}]}
    (root / "bids" / "derivatives" / "manual" / "dataset_description.json").write_text(json.dumps(description))


def _write_journal(root: Path) -> None:
    folder = root / "prepared" / "sub-0" / "anat"
    names = [path.relative_to(root / "prepared").as_posix() for path in folder.glob("*.nii.gz")]
    (folder / ".sub-0_unfinished.json").write_text(json.dumps({"Steelyard": {"Outputs": names}}))


def _write_failures(root: Path) -> None:
    text = "model,availability,method,fold,repeat,message\nunet,all,equal,0,0,it failed\n"
    (root / "experiment" / "failures.csv").write_text(text)


def _write_page(root: Path) -> None:
    (root / "page.md").write_text("a\n<!-- agreement -->\n<!-- /agreement -->\n<!-- measured -->\n<!-- /measured -->\n")


def _predict(root: Path) -> Words:
    return (
        "predict",
        root / "network",
        root / "bids" / "sub-0" / "anat" / "sub-0_FLAIR.nii.gz",
        root / "predicted",
        *PREDICTING,
    )


def _preprocess(root: Path) -> Words:
    return "preprocess", root / "bids", root / "prepared", *PREPARING


def _train(name: str) -> Callable[[Path], Words]:
    return lambda root: ("train", root / "bids", root / name, *TRAINING)


def _train_cached(root: Path) -> Words:
    return "train", root / "bids", root / "new", *TRAINING, "--cache", root / "slices"


def _train_groups(root: Path) -> Words:
    settings = ('domains=["flair@A","flair@B"]', "batch_size=2")
    return "train", root / "bids", root / "new", *TRAINING, "--set", *settings


def _evaluate(root: Path) -> Words:
    return "evaluate", root / "run", root / "bids"


def _report(name: str) -> Callable[[Path], Words]:
    return lambda root: ("report", root / name, "--out", root / "page.html", "--figures", root / "drawn")


def _export(root: Path) -> Words:
    return "export", root / "run", root / "model.onnx"


def _experiment(root: Path) -> Words:
    return "experiment", "smoke", root / "bids", root / "experiment", *EXPERIMENT


def _experiment_dry(root: Path) -> Words:
    return *_experiment(root), "--dry-run"


def _experiment_new(root: Path) -> Words:
    return "experiment", "smoke", root / "bids", root / "new", *EXPERIMENT


def _phantom(root: Path) -> Words:
    return "phantom", root / "phantom", "--subjects", "1"


def _agreement(root: Path) -> Words:
    return "agreement", root / "agreement", root / "bids", "--traced", "1", "--epochs", "1", "--page", root / "page.md"


def _benchmark(root: Path) -> Words:
    # Too few rounds: what reads the page refuses or accepts it before anything is measured.
    return "benchmark", root / "cost.json", "--page", root / "page.md", "--rounds", "2"


def _profile(root: Path) -> Words:
    return "profile", root / "bids", "--experiment", "smoke", "--folds", "4", "--set", 'domains=["flair@A","t1"]'


_RUN_OF_GRID = "runs/unet-all/equal/fold-0_repeat-0"
_RUN_OF_AGREEMENT = "runs/unet-all/conservative-25/fold-0_repeat-0"

RECORDS = (
    Record("network/config.json", _predict, ("network", "bids")),
    Record("network/last.safetensors", _predict, ("network", "bids")),
    Record("predicted/dataset_description.json", _predict, ("network", "bids", "predicted")),
    Record("predicted/sub-0/anat/sub-0_space-FLAIR_label-WMH_mask.json", _predict, ("network", "bids", "predicted")),
    Record("predicted/volumes.csv", _predict, ("network", "bids", "predicted")),
    Record("bids/derivatives/manual/dataset_description.json", _preprocess, ("bids",), _write_description),
    Record("prepared/dataset_description.json", _preprocess, ("bids", "prepared")),
    Record("prepared/sub-0/anat/sub-0_space-FLAIR_desc-preproc_FLAIR.json", _preprocess, ("bids", "prepared")),
    Record("prepared/sub-0/anat/sub-0_space-FLAIR_label-WMH_mask.json", _preprocess, ("bids", "prepared")),
    Record("prepared/sub-0/anat/.sub-0_unfinished.json", _preprocess, ("bids", "prepared"), _write_journal),
    *(
        Record(f"stopped/{name}", _train("stopped"), ("bids", "stopped"))
        for name in (
            "config.json",
            "split.json",
            "environment.json",
            "checkpoint.pt",
            "checkpoint.pt",
            "epochs.csv",
            "steps.csv",
        )
    ),
    Record("run/finished.json", _train("run"), ("bids", "run")),
    Record("slices", _train_cached, ("bids", "slices")),
    Record("bids/participants.tsv", _train_groups, ("bids",), _write_groups),
    Record("bids/dataset_description.json", _train_groups, ("bids",), _write_groups),
    *(
        Record(f"run/{name}", _evaluate, ("bids", "run"))
        for name in ("config.json", "split.json", "last.safetensors", "last.safetensors", "metrics.csv")
    ),
    *(
        Record(f"run/{name}", _report("run"), ("run",))
        for name in (
            "config.json",
            "split.json",
            "environment.json",
            "finished.json",
            "epochs.csv",
            "steps.csv",
            "metrics.csv",
            "audit.json",
        )
    ),
    *(
        Record(f"experiment/{name}", _report("experiment"), ("experiment",))
        for name in ("experiment.json", "results.csv", "results.csv", "timings.csv", f"{_RUN_OF_GRID}/config.json")
    ),
    *(Record(f"run/{name}", _export, ("run",)) for name in ("config.json", "last.safetensors")),
    *(
        Record(f"experiment/{name}", _experiment, ("bids", "experiment"))
        for name in (
            f"{_RUN_OF_GRID}/metrics.csv",
            f"{_RUN_OF_GRID}/epochs.csv",
            f"{_RUN_OF_GRID}/steps.csv",
            "timings.csv",
        )
    ),
    *(
        Record(f"experiment/{name}", _experiment_dry, ("bids", "experiment"))
        for name in ("experiment.json", "timings.csv", f"{_RUN_OF_GRID}/config.json", f"{_RUN_OF_GRID}/split.json")
    ),
    Record("experiment/failures.csv", _experiment, ("bids", "experiment"), _write_failures),
    Record("phantom/.unfinished-phantom.json", _phantom, (), _write_mark),
    Record("phantom/derivatives/truth/sub-001/anat/sub-001_space-FLAIR_label-WMH_mask.json", _phantom, (), _write_mark),
    *(
        Record(f"agreement/{name}", _agreement, ("bids", "agreement"), _write_page)
        for name in (
            "results.csv",
            "timings.csv",
            "votes",
            f"{_RUN_OF_AGREEMENT}/steps.csv",
            f"{_RUN_OF_AGREEMENT}/epochs.csv",
        )
    ),
    Record("bids/sub-0/anat/sub-0_FLAIR.nii.gz", _train("new"), ("bids",)),
    Record("bids/sub-0/anat/sub-0_T1w.nii.gz", _evaluate, ("bids", "run")),
    Record("bids/sub-0/anat/sub-0_FLAIR.nii.gz", _experiment_new, ("bids",)),
    Record("bids/derivatives/manual/sub-1/anat/sub-1_space-FLAIR_label-WMH_mask.nii.gz", _preprocess, ("bids",)),
    Record("bids/derivatives/manual/sub-1/anat/sub-1_space-FLAIR_label-WMH_mask.nii.gz", _train("new"), ("bids",)),
    Record("page.md", _benchmark, (), _write_page),
    Record("page.md", _agreement, ("bids", "agreement"), _write_page),
    Record("bids/participants.tsv", _profile, ("bids",), _write_groups),
)
"""Every record that a command reads."""


def damaged_record(draw: random.Random, material: Material, root: Path) -> Trial:
    """Damage a record and run the command that reads it."""
    record = draw.choice(RECORDS)
    for name in record.copies:
        copy(material.folder(name), root / name)
    record.prepare(root)
    path = root / record.path
    if path.is_dir():
        path = draw.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    change = _damage(draw, path, root)
    words = record.words(root)
    out = words[3] if words[0] in ("predict", "experiment") else words[2 if words[0] in ("preprocess", "train") else 1]
    treasures = bury(Path(out))
    sources = {file: file.read_bytes() for file in (root / "bids").rglob("*") if file.is_file()}
    # A benchmark whose page is sound after all fails for its rounds.
    names = () if words[0] == "benchmark" else (path.name, path.parent.name)
    if path.name.startswith("sub-"):
        names = (*names, path.name.partition("_")[0])  # a sound scan of somebody else's is told by the subject's name
    return Trial(words, change, names, sources, treasures)


def _damage(draw: random.Random, path: Path, root: Path) -> str:
    if not path.name.endswith(".nii.gz"):
        return mutations.damage(draw, path, root)
    file = nifti.mutated(draw, ending=".nii.gz")
    path.write_bytes(file.content)
    return f"{path.name}: {file.changes}"


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
