"""Records, settings, names and output folders that no run of ours would leave, through every command."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fuzz import headers, mutations
from fuzz.bench import Bench
from fuzz.invariants import faults_of
from fuzz.material import EXPERIMENT, PREDICTING, PREPARING, TRAINING, Material, write_head
from fuzz.nursery import Ending, fresh
from fuzz.tally import Tally, chance

PART = "records"
_SECONDS = 120.0
_TREASURE = b"written by a person, irreplaceable"

Words = tuple[str | Path, ...]


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


def run(seed: int, cases: int, bench: Bench) -> Tally:
    """Try so many bad inputs."""
    tally = Tally(PART, seed)
    for case in range(cases):
        if bench.budget.over:
            break
        run_case(tally, case, bench)
    tally.seconds = bench.budget.spent
    return tally


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
        yield from _insane(Path(trial.words[3]))


def _insane(out: Path) -> Iterator[str]:
    import nibabel

    for path in out.glob("sub-*/anat/*.nii.gz"):
        if not np.isfinite(np.asanyarray(nibabel.load(path).dataobj)).all():
            yield f"a result is not finite: {path.name}"


# Damaged records


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
    from importlib.metadata import version

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
    text = "model,availability,method,fold,repeat,message\nunet,all,F50-T50,0,0,it failed\n"
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


_RUN_OF_GRID = "runs/unet-all/F50-T50/fold-0_repeat-0"
_RUN_OF_AGREEMENT = "runs/unet-all/Ours-C-25/fold-0_repeat-0"

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
        shutil.copytree(material.folder(name), root / name)
    record.prepare(root)
    path = root / record.path
    if path.is_dir():
        path = draw.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    change = _damage(draw, path, root)
    words = record.words(root)
    out = words[3] if words[0] in ("predict", "experiment") else words[2 if words[0] in ("preprocess", "train") else 1]
    treasures = _bury(Path(out))
    sources = {file: file.read_bytes() for file in (root / "bids").rglob("*") if file.is_file()}
    return Trial(words, change, (path.name, path.parent.name), sources, treasures)


def _damage(draw: random.Random, path: Path, root: Path) -> str:
    if not path.name.endswith(".nii.gz"):
        return mutations.damage(draw, path, root)
    file = headers.mutated(draw, ending=".nii.gz")
    path.write_bytes(file.content)
    return f"{path.name}: {file.changes}"


def _bury(out: Path) -> dict[Path, bytes]:
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
            treasures[out / name] = _TREASURE + bytes([number])
            (out / name).write_bytes(treasures[out / name])
    return treasures


# Odd settings

_SETTINGS = (
    *("width", "every", "batch_size", "patience", "stop_after", "threads", "learning_rate", "momentum", "weight_decay"),
    *("prior", "seed", "domains", "model", "method", "options", "slices", "augmentation", "mixing", "optimizer"),
    *("schedule", "meta_test", "slices.count", "slices.frame", "slices.frame.shape", "slices.frame.pixel_mm"),
    *(
        "options.channels",
        "options.dropout",
        "augmentation.rotation",
        "augmentation.scale",
        "",
        ".",
        "slices.",
        "a.b.c",
    ),
)


def odd_setting(draw: random.Random, material: Material, root: Path) -> Trial:
    """Give a setting another kind of value."""
    name, value = draw.choice(_SETTINGS), draw.choice(mutations.ODD_VALUES)
    text = json.dumps(value) if draw.random() < 0.8 else str(value)
    text = text.encode("utf-8", "replace").decode()
    setting = ("--set", f"{name}={text}")
    tries: tuple[Words, ...] = (
        ("train", material.bids, root / "new", *TRAINING, *setting),
        ("profile", material.bids, "--experiment", "smoke", "--folds", "4", *setting),
        ("experiment", "smoke", material.bids, root / "new", *EXPERIMENT, "--dry-run", *setting),
        ("train", material.bids, root / "new", *TRAINING, "--threads", draw.choice(("0", "-1", "99999", "100000"))),
        (
            "train",
            material.bids,
            root / "new",
            *TRAINING,
            "--model",
            draw.choice(("nosuch:x", "monai:UNet", "os:system", "json")),
        ),
        ("train", material.bids, root / "new", *TRAINING, "--seed", draw.choice(("-1", "99999999999999999999"))),
        ("train", material.bids, root / "new", *TRAINING, "--folds", draw.choice(("0", "1", "-3", "1000000"))),
    )
    words = tries[draw.choice((0, 0, 0, 1, 1, 2, 3, 4, 5, 6))]
    change = " ".join(map(ascii, words[-2:]))[:200]
    return Trial(words, change, out=root / "new")


# Odd output folders


def _loop(out: Path) -> None:
    out.symlink_to(out.name)


def _a_file(out: Path) -> None:
    out.write_bytes(_TREASURE)


def _fifo(out: Path) -> None:
    os.mkfifo(out)


def _dangling(out: Path) -> None:
    out.symlink_to(out.with_name("nowhere") / "deep")


def _below_a_file(out: Path) -> None:
    out.parent.rmdir()
    out.parent.write_bytes(_TREASURE)


def _full(out: Path) -> None:
    out.mkdir()
    (out / "thesis.tex").write_bytes(_TREASURE)


def _linked_file(out: Path) -> None:
    target = out.with_name("somebody.txt")
    target.write_bytes(_TREASURE)
    out.symlink_to(target.name)


ODD_OUTS = (_loop, _a_file, _fifo, _dangling, _below_a_file, _full, _linked_file)


def _commands(material: Material, out: Path) -> tuple[Words, ...]:
    """Every command that writes, into one path."""
    data, finished = material.bids, material.folder("run")
    return (
        ("predict", material.network, material.scan, out, *PREDICTING),
        ("preprocess", data, out, *PREPARING),
        ("train", data, out, *TRAINING),
        ("evaluate", finished, data, "--out", out),
        ("report", finished, "--out", out),
        ("report", finished, "--out", out.with_name("page.html"), "--figures", out),
        ("export", finished, out),
        ("experiment", "smoke", data, out, *EXPERIMENT),
        ("experiment", "smoke", data, out, *EXPERIMENT, "--dry-run"),
        ("phantom", out, "--subjects", "1"),
        ("agreement", out, data),
        ("benchmark", out, "--rounds", "2"),
        ("profile", data, "--experiment", "smoke", "--folds", "4", "--json", out),
        ("demo", out, "--experiment", "nosuch"),
        ("train", data, out.with_name("new"), *TRAINING, "--cache", out),
    )


def odd_out(draw: random.Random, material: Material, root: Path) -> Trial:
    """Have a command write into something that is not a folder of its own."""
    out = root / "below" / "out"
    out.parent.mkdir()
    spoil, words = draw.choice(ODD_OUTS), draw.choice(_commands(material, out))
    spoil(out)
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    treasures = {path: path.read_bytes() for path in files}
    return Trial(words, f"out is {spoil.__name__.strip('_')}", treasures=treasures, sources=dict(treasures))


# What a folder of results may hold as a link, by the command that writes into it.
_LINKS = {
    "predicted": ("figures", "sub-0/anat", "sub-5", "sub-0", "volumes.csv", "index.html", ".withdrawn", ".bidsignore"),
    "prepared": ("figures", "sub-0/anat", "sub-0", "index.html", ".bidsignore", ".withdrawn"),
    "stopped": ("epochs.csv", "steps.csv", ".lock", "last.safetensors", "environment.json", "finished.json"),
    "experiment": ("tables", "figures", "results.csv", "report.html", ".lock", "timings.csv", "slices"),
}
_OUTSIDE = ("mine.jpg", "sub-0_space-FLAIR_label-WMH_probseg.nii.gz", ".mine.part", "sub-1.jpg", "epochs.csv", "a.json")


def planted_link(draw: random.Random, material: Material, root: Path) -> Trial:
    """Hand over a folder of results that holds links to the outside: nothing may be written or removed there."""
    outside = root / "outside"
    outside.mkdir()
    treasures = {outside / name: _TREASURE + name.encode() for name in _OUTSIDE}
    for path, content in treasures.items():
        path.write_bytes(content)
    name = draw.choice(sorted(_LINKS))
    out = _copy(material.folder(name), root / name)
    commands: dict[str, Words] = {
        "predicted": ("predict", material.network, material.scan, out, *PREDICTING),
        "prepared": ("preprocess", material.bids, out, *PREPARING),
        "stopped": ("train", material.bids, out, *TRAINING),
        "experiment": ("experiment", "smoke", material.bids, out, *EXPERIMENT),
    }
    linked = draw.choice(_LINKS[name])
    is_folder = "." not in linked or linked == ".withdrawn"
    target = outside if is_folder else outside / draw.choice(("absent", "epochs.csv", "a.json"))
    _replace_by_link(out / linked, target)
    change = f"{name}/{linked} is a link to {target.relative_to(root)}"
    return Trial(commands[name], change, treasures=treasures, sources=dict(treasures), outside=outside)


def _replace_by_link(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True, parents=True)
    path.symlink_to(target)


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


# Odd names

ODD_NAMES = (
    b"a\nfailed: b",
    b"\x1b[31mred\x1b[0m",
    b"\xff\xfe\xe4",
    rb"$\frac{$",
    b"<img src=x onerror=alert(1)>",
    b"=1+1",
    b"-rf",
    b"{{7*7}}",
    b"\xe2\x80\xaeesrever",
    b"x" * 180,
    b"a b'c\"d",
    b"%s%n",
    b"\r\x08\x07",
    b"[bold red]markup",
    b"[link=x]",
)


def odd_name(draw: random.Random, material: Material, root: Path) -> Trial:
    """Call a scan, a subject, a run or a folder something odd."""
    name = os.fsdecode(draw.choice(ODD_NAMES))
    kind = draw.choice(("scan", "broken scan", "subject", "run", "out", "domain", "loop", "fifo", "preprocess loop"))
    good = root / "scans" / "sub-good_FLAIR.nii.gz"
    good.parent.mkdir()
    shutil.copy(material.scan, good)
    odd = good.with_name(f"{name}_FLAIR.nii.gz")
    words: Words = ("predict", material.network, good.parent, root / "out", *PREDICTING)
    if kind == "scan":
        shutil.copy(material.scan, odd)
    elif kind == "broken scan":
        odd.write_bytes(b"nothing")
    elif kind == "loop":
        odd.symlink_to(odd.name)
    elif kind == "fifo":
        os.mkfifo(odd)
    elif kind in ("subject", "preprocess loop"):
        write_head(root / "bids", "good", seed=1)
        if kind == "subject":
            write_head(root / "bids", name, seed=2)
        else:
            (root / "bids" / f"sub-{name}").symlink_to(f"sub-{name}")
        words = ("preprocess", root / "bids", root / "out", *PREPARING)
    elif kind == "run":
        folder = _copy(material.folder("run"), root / f"run-{name}")
        (folder / "config.json").write_bytes(b"{")
        words = draw.choice(
            (("report", folder), ("evaluate", folder, material.bids), ("export", folder, root / "m.onnx"))
        )
    elif kind == "out":
        words = ("predict", material.network, good, root / f"out-{name}", *PREDICTING)
    else:
        words = (
            "report",
            _rename_domain(_copy(material.folder("run"), root / "run"), name),
            "--out",
            root / "page.html",
        )
    trial = Trial(words, f"{kind} called {name!a}")
    trial.sources = {good: good.read_bytes()}
    return trial


def _rename_domain(run_folder: Path, name: str) -> Path:
    """Have a run serve a domain with another name, in every file."""
    name = f"t1@{name}".encode("utf-8", "replace").decode()
    config = json.loads((run_folder / "config.json").read_text())
    config["domains"] = ["flair", name]
    (run_folder / "config.json").write_text(json.dumps(config))
    quoted = '"' + name.replace('"', '""') + '"'
    for table in ("epochs.csv", "steps.csv"):
        header, rest = (run_folder / table).read_text().split("\n", 1)
        cells = [f'"{cell[:-2]}{quoted[1:]}' if cell.endswith("_t1") else cell for cell in header.split(",")]
        (run_folder / table).write_text(",".join(cells) + "\n" + rest)
    rows = (run_folder / "metrics.csv").read_text().split("\n")
    (run_folder / "metrics.csv").write_text("\n".join(row.replace(",t1,", f",{quoted},") for row in rows))
    return run_folder


# Code beside the data

_MODULES = (
    "pickle",
    "json",
    "csv",
    "numpy",
    "torch",
    "nibabel",
    "random",
    "sitecustomize",
    "usercustomize",
    "steelyard",
)


def planted_module(draw: random.Random, material: Material, root: Path) -> Trial:
    """Work in a folder that somebody sent, with modules in it that are called as ours: none may be run."""
    folder = _copy(material.network, root / "network")
    for module in _MODULES:
        (folder / f"{module}.py").write_text(f"open({str(root / 'executed')!r}, 'w')\n")
    for path in folder.glob("*.py"):
        shutil.copy(path, root / path.name)
    scans = [root / f"sub-{number}_FLAIR.nii.gz" for number in range(2)]
    for path in scans:
        shutil.copy(material.scan, path)
    tries: tuple[Words, ...] = (
        ("predict", folder, *scans, root / "out", *PREDICTING, "--workers", "2"),
        ("preprocess", material.bids, root / "out", *PREPARING, "--workers", "2"),
        ("experiment", "smoke", material.bids, root / "out", *EXPERIMENT),
        ("predict", folder, *scans, root / "out", *PREDICTING),
    )
    return Trial(draw.choice(tries), "modules beside the data", fresh=True)


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
