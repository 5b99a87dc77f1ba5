"""`steelyard demo`: the main job from end to end, on synthetic heads."""

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, plain, say
from steelyard.cli.evaluate import Evaluate
from steelyard.cli.phantom import Phantom
from steelyard.cli.predict import Predict
from steelyard.cli.preprocess import Preprocess
from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.report.html.page import Picture
    from steelyard.report.tables.table import PageTable

METHODS = ("equal", "conservative-25")
"""Fixed and learned weights."""

_SPLIT = ("--folds", "4", "--validate", "1")
_NEW_HEAD_SEED = 1  # of the head that no network was trained on
_WORKERS = 2
_FOLDERS = ("raw", "prepared", "new_head", "runs", "predicted", "slices")
_COMMANDS = (
    "steelyard preprocess BIDS prepared",
    "steelyard train prepared run --method conservative-25",
    "steelyard evaluate run prepared",
    "steelyard report run --data prepared --out report.html",
    "steelyard predict run SCAN.nii.gz predicted",
)


@dataclass(frozen=True)
class Demo(Command):
    """Show the main job from end to end on synthetic heads.

    Heads are made and prepared, fixed and learned weights are trained and judged, and a raw scan is segmented.
    Takes minutes on two cores. Give the command again to resume a demo that was stopped.
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[OUT]")] = Path("demo")
    """The folder for all files of the demo."""
    subjects: int = 8
    """The number of heads."""
    experiment: str = "demo"
    """The training config to start from."""

    def run(self) -> int:
        """Run the commands that a user would, then write the page."""
        raw, prepared, new_head = self.out / "raw", self.out / "prepared", self.out / "new_head"
        runs = {method: self.out / "runs" / method for method in METHODS}
        start = time.monotonic()
        self._check()
        self._make(Phantom(raw, subjects=self.subjects, workers=_WORKERS))
        self._do(Preprocess(raw, prepared, workers=_WORKERS))
        self._train(prepared, runs)
        for run in runs.values():
            self._do(Evaluate(run, prepared))
        self._make(Phantom(new_head, subjects=1, seed=_NEW_HEAD_SEED))
        self._do(Predict(runs[METHODS[-1]], (new_head, self.out / "predicted"), workers=_WORKERS))
        page = self._report(prepared, list(runs.values()))
        say(f"done in {(time.monotonic() - start) / 60:.1f} minutes; look at {page}")
        return 0

    def _check(self) -> None:
        """Refuse a folder that cannot be written, or whose page was not written by this command."""
        from steelyard.files.destinations import check_file, check_folder, refuse_links
        from steelyard.files.pages import MARK

        check_folder(self.out)
        check_file(self.out / "index.html", mark=MARK)
        for name in _FOLDERS:
            refuse_links(self.out / name, within=self.out)

    def _make(self, phantom: Phantom) -> None:
        """Make heads, unless an earlier demo has made them all."""
        if not (phantom.out / "participants.tsv").exists():
            self._do(phantom)
        heads = len(list(phantom.out.glob("sub-*")))
        if heads != phantom.subjects:
            raise UserError(
                f"{phantom.out}: an earlier demo made {heads} heads, not {phantom.subjects}; give another folder."
            )

    def _do(self, command: Command) -> None:
        code = command.run()
        if code:
            raise SystemExit(code)

    def _train(self, prepared: Path, runs: dict[str, Path]) -> None:
        from steelyard.cli.progress import track
        from steelyard.experiments.configs import config_named
        from steelyard.experiments.single_run import train_side_by_side

        options = ("--experiment", self.experiment, "--cache", str(self.out / "slices"), *_SPLIT)
        epochs = config_named(self.experiment).epochs * len(runs)
        with closing(train_side_by_side(prepared, runs, options)) as lines:  # closing kills the processes
            track(lines, total=epochs, title="Training side by side")

    def _report(self, prepared: Path, runs: list[Path]) -> Path:
        from steelyard.files.atomic import write_text
        from steelyard.report.data.runs import read_runs
        from steelyard.report.html.assembly import Scans, assemble
        from steelyard.report.html.page import render_report

        report = assemble(
            read_runs(runs),
            scans=Scans(data=prepared),
            title="One network for FLAIR and T1",
            lead=f"{self.subjects} synthetic heads, a U-Net, fixed against learned weights; every number was measured "
            "in this run.",
        )
        report = replace(report, pictures=_mosaics(self.out), commands=_COMMANDS)
        page = self.out / "index.html"
        write_text(page, render_report(report))
        for table in report.tables:
            _show(table)
        return page


def _mosaics(out: Path) -> "list[Picture]":
    from steelyard.report.html.page import Picture

    pictures = []
    for mosaic in sorted((out / "predicted" / "figures").glob("*.jpg")):
        picture = Picture(
            title=f"A raw scan that no network was trained on: {mosaic.stem}",
            caption="Stripped, corrected, normalised and segmented by steelyard predict; masks, volumes and a page:",
            content=mosaic.read_bytes(),
            kind="jpeg",
            link="predicted/index.html",
        )
        pictures.append(picture)
    return pictures


def _show(results: "PageTable") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*results.headings)
    for row in results.rows:
        table.add_row(*map(plain, row))
    Console().print(table)
