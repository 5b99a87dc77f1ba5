"""What a method costs beside what it gains: its time per step."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from steelyard.errors import UserError
from steelyard.report.results import RunKey, Setting, read_table, run_of, setting_of

_COLUMNS = ("model", "availability", "method", "fold", "repeat", "seconds_per_step")


@dataclass(frozen=True)
class Timings:
    """Seconds per step of every run that was timed.

    Args:
        seconds: By setting and run.
    """

    seconds: Mapping[tuple[Setting, RunKey], float]

    def ratio(self, setting: Setting, method: str, baseline: str) -> float:
        """Return a method's time per step over the baseline's: the median over folds and repeats that both have."""
        ratios = [
            seconds / self.seconds[setting, RunKey(baseline, run.fold, run.repeat)]
            for (where, run), seconds in sorted(self.seconds.items())
            if (where, run.method) == (setting, method)
            and (setting, RunKey(baseline, run.fold, run.repeat)) in self.seconds
        ]
        return median(ratios) if ratios else math.nan

    def sentence(self, setting: Setting, pairs: Iterable[tuple[str, str]]) -> str:
        """Say what steps of methods took, each beside another's; nothing if none was timed."""
        ratios = {pair: self.ratio(setting, *pair) for pair in pairs}
        told = [
            f"{method} {ratio:.2f} × {against}" for (method, against), ratio in ratios.items() if math.isfinite(ratio)
        ]
        return f"{setting}: what a step took: {', '.join(told)}." if told else ""


def read_timings(path: Path) -> Timings:
    """Read a table of timings: model, availability, method, fold, repeat, seconds_per_step.

    Raises:
        UserError: The file cannot be read or is no such table, with the line where there is one.
    """
    seconds: dict[tuple[Setting, RunKey], float] = {}
    for where, cells in read_table(path, _COLUMNS)[1]:
        key = setting_of(cells), run_of(where, cells)
        if key in seconds:
            raise UserError(f"{where}: {key[0]}, {key[1]} is there twice.")
        seconds[key] = _positive(where, cells["seconds_per_step"])
    return Timings(seconds)


def _positive(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"{where}: seconds_per_step must be a number above 0; got {text!r}.")
    return value
