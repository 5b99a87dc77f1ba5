"""What a step of a method took."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from steelyard.errors import UserError
from steelyard.files.checks import brief, parse_number
from steelyard.files.records import read_rows
from steelyard.report.data.results import RunKey, Setting, run_of, setting_of

_SHORTEST = 1e-9  # seconds; no step of training is shorter
_COLUMNS = ("model", "availability", "method", "fold", "repeat", "seconds_per_step")


@dataclass(frozen=True)
class Timings:
    """Seconds per step of every run that was timed.

    Args:
        seconds: By setting and run.
        whole: Those whose seconds have the rest of an epoch in them, as timings.csv once had; they are compared with
            each other alone.
    """

    seconds: Mapping[tuple[Setting, RunKey], float]
    whole: frozenset[tuple[Setting, RunKey]] = frozenset()

    def ratio(self, setting: Setting, method: str, baseline: str) -> float:
        """Return a method's time per step over the baseline's: the median over folds and repeats that both have."""
        ratios = []
        for key, seconds in sorted(self.seconds.items()):
            run = key[1]
            if key[0] != setting or run.method != method:
                continue
            baseline_key = setting, RunKey(baseline, run.fold, run.repeat)
            # Times with and without the rest of an epoch cannot be compared.
            comparable = (key in self.whole) == (baseline_key in self.whole)
            if baseline_key in self.seconds and comparable:
                ratios.append(seconds / self.seconds[baseline_key])
        if not ratios:
            return math.nan
        return median(ratios)

    def sentence(self, setting: Setting, pairs: Iterable[tuple[str, str]]) -> str:
        """Return a sentence on what steps of methods took, each beside another's; empty if none was timed."""
        parts = []
        for method, against in pairs:
            ratio = self.ratio(setting, method, against)
            if math.isfinite(ratio):
                parts.append(f"{method} {ratio:.2f} × {against}")
        if not parts:
            return ""
        return f"{setting}: what a step took: {', '.join(parts)}."


def read_timings(path: Path) -> Timings:
    """Read a table of timings: model, availability, method, fold, repeat, seconds_per_step.

    Raises:
        UserError: The file cannot be read or is not such a table, with the line where there is one.
    """
    seconds: dict[tuple[Setting, RunKey], float] = {}
    whole = set()
    for where, cells in read_rows(path, _COLUMNS):
        key = setting_of(cells), run_of(where, cells)
        if key in seconds:
            raise UserError(f"{where}: {key[0]}, {key[1]} is there twice.")
        seconds[key] = _positive(where, cells["seconds_per_step"])
        if not cells.get("validation_seconds"):
            whole.add(key)
    return Timings(seconds, frozenset(whole))


def timings_of(out: Path) -> Timings:
    """Return the timings of an experiment's runs; none where no run was timed."""
    with suppress(UserError):
        return read_timings(out / "timings.csv")
    return Timings({})


def _positive(where: str, text: str) -> float:
    try:
        value = parse_number("seconds_per_step", text)
    except UserError:
        value = math.nan
    if not _SHORTEST <= value < math.inf:
        raise UserError(f"{where}: seconds_per_step must be a number above 0; got {brief(text)}.")
    return value
