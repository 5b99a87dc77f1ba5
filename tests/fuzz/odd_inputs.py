"""Settings, output folders and names that nobody would choose; links and modules that somebody planted."""

import json
import os
import random
import shutil
from pathlib import Path

from fuzz import mutations
from fuzz.material import (
    EXPERIMENT,
    PREDICTING,
    PREPARING,
    TRAINING,
    TREASURE,
    Material,
    Trial,
    Words,
    copy,
    write_head,
)
from fuzz.tally import CANARY

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


def _loop(out: Path) -> None:
    out.symlink_to(out.name)


def _a_file(out: Path) -> None:
    out.write_bytes(TREASURE)


def _fifo(out: Path) -> None:
    os.mkfifo(out)


def _dangling(out: Path) -> None:
    out.symlink_to(out.with_name("nowhere") / "deep")


def _below_a_file(out: Path) -> None:
    out.parent.rmdir()
    out.parent.write_bytes(TREASURE)


def _full(out: Path) -> None:
    out.mkdir()
    (out / "thesis.tex").write_bytes(TREASURE)


def _linked_file(out: Path) -> None:
    target = out.with_name("somebody.txt")
    target.write_bytes(TREASURE)
    out.symlink_to(target.name)


ODD_OUTS = (_loop, _a_file, _fifo, _dangling, _below_a_file, _full, _linked_file)


def commands(material: Material, out: Path) -> tuple[Words, ...]:
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
        ("regret", out, "--smallest", "--steps", "1", "--methods", "equal", "evidence"),
        ("demo", out, "--subjects", "1"),
        ("train", data, out.with_name("new"), *TRAINING, "--cache", out),
    )


def odd_out(draw: random.Random, material: Material, root: Path) -> Trial:
    """Have a command write into something that is not a folder of its own."""
    out = root / "below" / "out"
    out.parent.mkdir()
    spoil, words = draw.choice(ODD_OUTS), draw.choice(commands(material, out))
    if words[0] == "demo":
        spoil = _a_file  # it takes minutes wherever it can begin
    spoil(out)
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    treasures = {path: path.read_bytes() for path in files}
    return Trial(words, f"out is {spoil.__name__.strip('_')}", treasures=treasures, sources=dict(treasures))


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
        folder = copy(material.folder("run"), root / f"run-{name}")
        (folder / "config.json").write_bytes(b"{")
        words = draw.choice(
            (("report", folder), ("evaluate", folder, material.bids), ("export", folder, root / "m.onnx"))
        )
    elif kind == "out":
        words = ("predict", material.network, good, root / f"out-{name}", *PREDICTING)
    else:
        words = (
            "report",
            _rename_domain(copy(material.folder("run"), root / "run"), name),
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
    treasures = {outside / name: TREASURE + name.encode() for name in _OUTSIDE}
    for path, content in treasures.items():
        path.write_bytes(content)
    name = draw.choice(sorted(_LINKS))
    out = copy(material.folder(name), root / name)
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
    folder = copy(material.network, root / "network")
    for module in _MODULES:
        (folder / f"{module}.py").write_text(f"open({str(root / CANARY)!r}, 'w')\n")
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
