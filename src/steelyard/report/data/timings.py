"""What a step of a method took."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from steelyard.errors import UserError
from steelyard.imaging.runs.experiment_folder import TIMINGS, RunTiming, read_timings
from steelyard.report.data.results import RunKey, Setting, split_key


@dataclass(frozen=True)
class Timings:
    """The timings of every run that was timed, by setting and run."""

    runs: Mapping[tuple[Setting, RunKey], RunTiming]

    def ratio(self, setting: Setting, method: str, baseline: str) -> float:
        """Return a method's time per step over the baseline's: the median over folds and repeats that both have."""
        ratios = []
        for (run_setting, run), timing in sorted(self.runs.items(), key=lambda item: item[0]):
            if run_setting != setting or run.method != method:
                continue
            base = self.runs.get((setting, RunKey(baseline, run.fold, run.repeat)))
            if base is not None:
                ratios.append(timing.seconds_per_step / base.seconds_per_step)
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


def load_timings(path: Path) -> Timings:
    """Read a table of timings.

    Raises:
        UserError: The file cannot be read or is not such a table, with the line where there is one.
    """
    return Timings({split_key(key): timing for key, timing in read_timings(path).items()})


def timings_of(out: Path) -> Timings:
    """Return the timings of an experiment's runs; none where no run was timed."""
    try:
        return load_timings(out / TIMINGS)
    except UserError:
        return Timings({})
