"""The numbers the paper published, to stand beside ours."""

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from steelyard.imaging.runs.method import Method
from steelyard.report.data.results import Setting

_MODELS = {"unet": "U-Net", "u-net": "U-Net", "lightweight": "LW", "lw": "LW"}
_AVAILABILITIES = {"all": "12F"}  # all of the paper's training subjects are twelve
_METHODS = {"flair-only": "FLAIR only", "t1-only": "T1 only"}
_KEYS = ("model", "availability", "method")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A row of the paper's tables 1, S1 and S2.

    Args:
        model: As the paper calls it.
        availability: As the paper calls it.
        method: As the paper calls it.
        printed: Whether the row was printed; some stand in the paper's source as comments only.
        numbers: What it says, by `dsc_flair`, `dsc_flair_sd`, `gain_mean`, `gain_sd`, …; NaN where it says nothing.
    """

    model: str
    availability: str
    method: str
    printed: bool
    numbers: dict[str, float]


@cache
def published_rows() -> tuple[Published, ...]:
    """Return every row of the paper's tables."""
    text = files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(
        Published(
            **{key: row.pop(key) for key in _KEYS},
            printed=row.pop("published") == "yes",
            numbers={name: float(cell) if cell else math.nan for name, cell in row.items()},
        )
        for row in csv.DictReader(text.splitlines())
    )


def published(setting: Setting, method: str) -> Published | None:
    """Return the paper's row for a method in a setting, if it has one.

    `all` stands for the paper's 12F, `unet` for U-Net, `lightweight` for LW and `equal` for F50-T50.

    >>> published(Setting("unet", "8F"), "Ours-C-25").numbers["gain_mean"]
    0.011
    """
    name = Method.read(method).paper_name
    wanted = (
        _MODELS.get(setting.model.lower(), setting.model),
        _AVAILABILITIES.get(setting.availability, setting.availability),
        _METHODS.get(name, name),
    )
    return next((row for row in published_rows() if (row.model, row.availability, row.method) == wanted), None)
