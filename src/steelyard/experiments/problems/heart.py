"""Heart disease at four hospitals, from 13 findings (UCI, Detrano et al. 1989)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from steelyard.experiments.problems.classification import Classification, area_under_curve, split_stratified
from steelyard.experiments.problems.data_files import require_file, require_two_classes
from steelyard.experiments.problems.problem import DomainData, Labelled, Spoiling
from steelyard.experiments.problems.spoiling import standard_variants
from steelyard.files.checks import parse_number
from steelyard.files.records import read_rows

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FINDINGS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
_FOLDER = "heart"
_TARGET = "target"
_SHARES = (0.5, 0.15)  # of a hospital's patients, for training and for validation
_HIDDEN = 16


@final
@dataclass(frozen=True)
class Heart(Classification):
    """Has a patient a disease of the heart? The metric is the area under the ROC curve.

    Args:
        data: The folder that has the folder `heart`.
    """

    data: Path
    name: str = "heart"
    steps: ClassVar[int] = 800
    batch_size: ClassVar[int] = 16
    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.1, "adamw": 3e-3}
    stackable: ClassVar[bool] = True

    @property
    def variants(self) -> Mapping[str, Spoiling]:
        """How the problem may be spoiled."""
        return standard_variants(len(HOSPITALS))

    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Return the hospitals; each has patients with and without disease in every part.

        Raises:
            UserError: A file is missing or damaged.
        """
        raw = {}
        for hospital in HOSPITALS:
            patients = _read_hospital(self.data / _FOLDER / f"{hospital}.csv")
            raw[hospital] = split_stratified(patients, _SHARES, generator)
        training = torch.cat([part.train.inputs for part in raw.values()])
        means = training.nanmean(0)
        deviations = (training - means).square().nanmean(0).sqrt().clamp(min=1e-6)
        domains = {}
        for name, part in raw.items():
            domains[name] = DomainData(
                train=_standardised(part.train, means, deviations),
                validation=_standardised(part.validation, means, deviations),
                test=_standardised(part.test, means, deviations),
            )
        return domains

    def build_model(self) -> nn.Module:
        """Return a network with one hidden layer."""
        return nn.Sequential(nn.Linear(2 * len(FINDINGS), _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 2))

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the area under the ROC curve."""
        return area_under_curve(outputs, targets)


def _standardised(patients: Labelled, means: Tensor, deviations: Tensor) -> Labelled:
    """Return findings with mean 0 and deviation 1; a missing one is 0, and a second half of columns says so."""
    missing = patients.inputs.isnan()
    findings = ((patients.inputs - means) / deviations).masked_fill(missing, 0.0)
    return Labelled(torch.cat([findings, missing.float()], dim=1).float(), patients.targets)


@lru_cache(maxsize=len(HOSPITALS))
def _read_hospital(path: Path) -> Labelled:
    """Read a table of patients; a finding is NaN where it is `?` or empty.

    Raises:
        UserError: The file is missing or damaged.
    """
    require_file(path)
    findings, targets = [], []
    for position, row in read_rows(path, (*FINDINGS, _TARGET)):
        findings.append([_finding(f"{position}: {name}", row[name]) for name in FINDINGS])
        targets.append(int(parse_number(f"{position}: {_TARGET}", row[_TARGET]) > 0))
    require_two_classes(path, targets, samples="patients with and without disease")
    return Labelled(torch.tensor(findings, dtype=torch.float64), torch.tensor(targets))


def _finding(name: str, cell: str) -> float:
    if cell.strip() == "?":
        return math.nan
    return parse_number(name, cell)
