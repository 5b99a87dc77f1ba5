"""Runs a grid: every run once, whatever is killed on the way."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.experiments.executors import Crew, News
from steelyard.experiments.grids import GridConfig
from steelyard.experiments.results import KEYS, design_order
from steelyard.experiments.units import CACHE, RUNS, Unit, is_done, run_path, split_for
from steelyard.files import writing
from steelyard.files.checks import is_name, parse_whole
from steelyard.files.records import read_json, read_loose_rows
from steelyard.files.writing import as_csv, holding, reason, refuse_links, remove, write_json, write_text
from steelyard.imaging.runs.run_folder import refuse_difference
from steelyard.imaging.train.data import LabelledSlices

DESIGN, FAILURES = "experiment.json", "failures.csv"
TRIES = 2
"""How often a run may fail."""

_TICK = 0.5  # seconds between looks at the runs


@contextmanager
def claim(out: Path) -> Iterator[None]:
    """Hold the experiment's folder.

    Raises:
        UserError: It holds something else, another process works on it, or it cannot be written.
    """
    with holding(out):
        check_folder(out)
        yield


def check_folder(out: Path) -> None:
    """Make sure that a folder is free, or an experiment's; change nothing.

    Raises:
        UserError: It holds something else, or cannot be written.
    """
    writing.check_folder(out)
    if not out.exists():
        return
    try:
        names = {path.name for path in out.iterdir() if path.name[0] != "."} - {CACHE}
    except OSError as error:
        raise UserError(f"{out}: {reason(error)}.") from error
    for name in (CACHE, RUNS):
        refuse_links(out / name, within=out)
    if names and DESIGN not in names:
        raise UserError(f"{out}: is not empty and holds no experiment; nothing was written.")


def check_design(out: Path, grid: GridConfig, slices: LabelledSlices, *, write: bool = True) -> None:
    """Write down settings and splits, or make sure that they are the ones that the experiment began with.

    What may be narrowed or widened from call to call is left out: models, methods, availability, turns, repeats.

    Raises:
        UserError: The folder holds another experiment, and where it differs.
    """
    path = out / DESIGN
    content = _design(grid, slices)
    if path.exists():
        refuse_difference(path, read_json(path), content)
    elif write:
        write_json(path, content)


def _design(grid: GridConfig, slices: LabelledSlices) -> dict[str, Any]:
    training = grid.training.as_dict()
    common = {name: value for name, value in training.items() if name not in ("model", "method", "seed")}
    settings = {name: getattr(grid, name) for name in ("folds", "validate", "split_seed", "scarce")}
    splits = [split_for(grid, slices, fold=fold).as_dict() for fold in range(grid.folds)]
    return common | settings | {"splits": splits}


def run_units(units: Sequence[Unit], crew: Crew) -> Iterator[News | None]:
    """Have a crew do the runs that are not done, and yield news as it comes, and nothing now and then.

    A run that fails is put at the end of the queue and tried once more; only its last failure is news.
    """
    waiting = deque(unit for unit in units if not unit.done)
    failures: Counter[Path] = Counter()
    while waiting or crew.busy:
        while waiting and len(crew.busy) < crew.size:
            crew.give(waiting.popleft())
        heard = crew.listen(_TICK)
        for news in heard:
            if isinstance(news.outcome, str):
                failures[news.unit.path] += 1
                if failures[news.unit.path] < TRIES:
                    waiting.append(news.unit)
                    continue
            yield news
        if not heard:
            yield None


def write_failures(out: Path, failed: Sequence[News]) -> None:
    """Write failures.csv, in the order of results.csv; no file if nothing is to be told.

    A failure is told until its run is done or fails again, also by calls that have nothing to do with that run.

    Args:
        out: The experiment's folder.
        failed: What failed now.
    """
    path = out / FAILURES
    now = [{name: str(value) for name, value in news.unit.identity.items()} for news in failed]
    told = [row | {"message": str(news.outcome)} for row, news in zip(now, failed, strict=True)]
    rows = {run_path(out, row): row for row in (*_read_failures(path), *told)}
    left = sorted((row for place, row in rows.items() if not is_done(place)), key=design_order)
    if left:
        write_text(path, as_csv(left))
    else:
        remove(path)


def _read_failures(path: Path) -> list[dict[str, str]]:
    """Return the rows of an earlier call; what is no such row is left out."""
    try:
        return [row for row in read_loose_rows(path) if _is_failure(row)]
    except UserError:
        return []


def _is_failure(row: dict[str, str]) -> bool:
    if list(row) != [*KEYS, "message"] or not all(is_name(row[name]) for name in KEYS):
        return False
    try:
        return all(parse_whole(name, row[name]) >= 0 for name in ("fold", "repeat"))
    except UserError:
        return False
