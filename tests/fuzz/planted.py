"""Links and modules that somebody planted in what they sent."""

import random
import shutil
from pathlib import Path

from fuzz.invariants import CANARY
from fuzz.material import EXPERIMENT, PREDICTING, PREPARING, TRAINING, Material
from fuzz.trial import TREASURE, Trial, Words, copy

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
