"""What is written down about a preprocessed subject: sidecars, fingerprints, measures of quality."""

import math
from dataclasses import asdict, dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.files.checks import LARGEST, check_number
from steelyard.files.records import read_json
from steelyard.files.regular_files import digest
from steelyard.imaging.datasets.bids import SUFFIX
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess.pipeline import Prepared, dice
from steelyard.imaging.preprocess.settings import REVISION, Settings


def inputs_of(subject: Subject, root: Path) -> dict[str, dict[str, str]]:
    """Return each input's path within the dataset and its digest, by role."""
    roles = {role: getattr(subject, role) for role in ("flair", "t1", "wmh", "brain")}
    return {
        role: {
            "Path": path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name,
            "SHA256": digest(path),
        }
        for role, path in roles.items()
        if path is not None
    }


def fingerprint(inputs: dict[str, dict[str, str]], settings: Settings) -> str:
    """Return what changes when the content of an input, a setting or the method changes."""
    content = {
        "revision": REVISION,
        "settings": settings.as_dict(),
        "inputs": {role: entry["SHA256"] for role, entry in inputs.items()},
    }
    return sha256(dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the JSON beside a preprocessed scan says of its subject.

    Args:
        fingerprint: Of inputs, settings and method.
        measures: Of quality, by name.
        seconds: What processing took.
    """

    fingerprint: str
    measures: dict[str, float]
    seconds: float


def read_record(path: Path) -> Record:
    """Read the JSON beside a preprocessed scan.

    Raises:
        UserError: It is no such record.
    """
    content = _entry(path, read_json(path), "Steelyard")
    return Record(
        fingerprint=str(content.get("Fingerprint")),
        measures=_numbers(path, _entry(path, content, "Measures")),
        seconds=_numbers(path, _entry(path, content, "Seconds")).get("total", 0.0),
    )


def read_outputs(path: Path) -> list[str]:
    """Return the files that a record, or the list of an unfinished run, names.

    Raises:
        UserError: It names none.
    """
    outputs = _entry(path, read_json(path), "Steelyard").get("Outputs")
    if not isinstance(outputs, dict | list) or not all(isinstance(n, str) and n.isprintable() for n in outputs):
        raise UserError(f"{path}: Outputs must be names of files.")
    return list(outputs)


def _entry(path: Path, content: dict[str, Any], name: str) -> dict[str, Any]:
    entry = content.get(name)
    if not isinstance(entry, dict):
        raise UserError(f"{path}: {name} must be an object.")
    return entry


def _numbers(path: Path, content: dict[str, Any]) -> dict[str, float]:
    """Return numbers by name; what could not be measured is NaN."""
    for name, value in content.items():
        if not (isinstance(value, float) and math.isnan(value)):
            check_number(f"{path}: {name}", value, -LARGEST)
    return content


def measures(done: Prepared) -> dict[str, float]:
    """Return one number per question that a look at the cohort asks."""
    inside = done.brain.voxels
    numbers = {"brain_ml": float(inside.sum()) * done.brain.voxel_ml}
    if done.alignment is not None:
        numbers["moved_mm"] = done.alignment.moved_mm
        if done.alignment.information is not None:
            numbers["information"] = done.alignment.information
    if done.overlap is not None:
        numbers["brain_overlap"] = done.overlap
    if done.t1_missing is not None:
        numbers["t1_missing"] = done.t1_missing
    if "brain" in done.masks:
        numbers["supplied_brain_dice"] = dice(inside, done.masks["brain"].voxels)
    if "wmh" in done.masks:
        numbers["wmh_ml"] = float(done.masks["wmh"].voxels.sum()) * done.brain.voxel_ml
    for contrast, channel in done.channels.items():
        if channel.field is not None:
            numbers[f"{contrast}_bias_sd"] = float(channel.field[inside].std())
        if channel.stripe is not None:
            values = channel.corrected.voxels[inside]
            numbers[f"{contrast}_stripe_rank"] = float(np.mean(values < channel.stripe.mean))
    return numbers


def sources(inputs: dict[str, dict[str, str]]) -> list[str]:
    """Return the BIDS address of each input."""
    return [f"bids:raw:{entry['Path']}" for entry in inputs.values()]


def sidecar(contrast: str, done: Prepared, common: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON beside a preprocessed scan."""
    channel = done.channels[contrast]
    own: dict[str, Any] = {"Contrast": SUFFIX[contrast]}
    if channel.stripe is not None:
        own["WhiteStripe"] = asdict(channel.stripe)
    if contrast == "t1" and done.alignment is not None:
        own["Alignment"] = {
            "FlairToT1Matrix": done.alignment.matrix.tolist(),
            "Coordinates": "right-anterior-superior, mm",
            "MovedMm": done.alignment.moved_mm,
            "MutualInformation": done.alignment.information,
            "LeftUntouched": done.alignment.kept,
        }
    settings = common["Settings"]
    return {
        "Description": "Preprocessed for segmentation by steelyard.",
        "Sources": sources(common["Inputs"]),
        "SkullStripped": settings["brain"] != "skip",
        "SpatialReference": "orig",
        "Steelyard": own | common,
    }
