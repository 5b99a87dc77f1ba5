"""`steelyard demo`: the main job from end to end, on synthetic heads."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
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

METHODS = ("F50-T50", "Ours-C-25")
"""Fixed and learned weights."""

_SPLIT = ("--folds", "4", "--validate", "1")
_STRANGER = 1  # the seed of the head that nobody trained on
_WORKERS = 2
_COMMANDS = (
    "steelyard preprocess BIDS prepared",
    "steelyard train prepared run --method Ours-C-25",
    "steelyard evaluate run prepared",
    "steelyard report run --data prepared --out report.html",
    "steelyard predict run SCAN.nii.gz predicted",
)


@dataclass(frozen=True)
class Demo(Command):
    """Make heads, prepare them, train fixed and learned weights, judge both, segment a raw scan, show the result.

    Minutes on two cores. A demo that was stopped goes on where it was if the command is given again.
    """

    out: Annotated[Path, tyro.conf.Positional] = Path("demo")
    """The folder for everything the demo makes."""
    subjects: int = 8
    """How many heads are made."""
    experiment: str = "demo"
    """The training config to start from."""

    def run(self) -> int:
        """Run the commands that a user would, then write the page."""
        raw, prepared, stranger = (self.out / name for name in ("raw", "prepared", "stranger"))
        runs = [self.out / "runs" / method for method in METHODS]
        start = time.monotonic()
        self._check()
        self._make(Phantom(raw, subjects=self.subjects, workers=_WORKERS))
        self._do(Preprocess(raw, prepared, workers=_WORKERS))
        self._train(prepared, runs)
        for run in runs:
            self._do(Evaluate(run, prepared))
        self._make(Phantom(stranger, subjects=1, seed=_STRANGER))
        self._do(Predict(runs[-1], (stranger, self.out / "predicted"), workers=_WORKERS))
        page = self._report(prepared, runs)
        say(f"done in {(time.monotonic() - start) / 60:.1f} minutes; look at {page}")
        return 0

    def _check(self) -> None:
        """Refuse a folder that cannot be written, or whose page is not ours."""
        from steelyard.files.pages import MARK
        from steelyard.files.writing import check_file, check_folder, refuse_links

        check_folder(self.out)
        check_file(self.out / "index.html", mark=MARK)
        for name in ("raw", "prepared", "stranger", "runs", "predicted", "slices"):
            refuse_links(self.out / name, within=self.out)

    def _make(self, stage: Phantom) -> None:
        """Make heads, unless an earlier run has made them all."""
        if not (stage.out / "participants.tsv").exists():
            self._do(stage)
        made = len(list(stage.out.glob("sub-*")))
        if made != stage.subjects:
            raise UserError(
                f"{stage.out}: an earlier demo made {made} heads, not {stage.subjects}; give another folder."
            )

    def _do(self, stage: Command) -> None:
        code = stage.run()
        if code:
            raise SystemExit(code)

    def _train(self, prepared: Path, runs: list[Path]) -> None:
        """Train the runs side by side, each in a process of its own."""
        from steelyard.cli.progress import track
        from steelyard.experiments.configs import profile_named
        from steelyard.files.writing import remove

        settings = ("--experiment", self.experiment, "--cache", str(self.out / "slices"), *_SPLIT)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        for method, run in zip(METHODS, runs, strict=True):
            run.parent.mkdir(parents=True, exist_ok=True)
            log = run.parent / f"{run.name}.log"
            command = [
                sys.executable,
                "-m",
                "steelyard",
                "train",
                str(prepared),
                str(run),
                "--method",
                method,
                *settings,
            ]
            remove(log)
            with log.open("xb") as stream:
                running.append((subprocess.Popen(command, stderr=stream, env=environment), log))  # noqa: S603
        try:
            total = profile_named(self.experiment).epochs * len(runs)
            track(_epochs(running, runs), total=total, title="Training side by side")
        finally:
            for process, _ in running:
                process.kill()
        for process, log in running:
            if process.returncode:
                said = log.read_text().strip().splitlines() or ["nothing; it may have run out of memory"]
                raise UserError(f"training failed; {log} ends with: {said[-1]}")

    def _report(self, prepared: Path, runs: list[Path]) -> Path:
        from dataclasses import replace

        from steelyard.files.writing import write_text
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


def _epochs(running: "list[tuple[subprocess.Popen[bytes], Path]]", runs: list[Path]) -> Iterator[str]:
    """Yield a line for every epoch that some run has finished, until all processes have ended."""
    told = dict.fromkeys(runs, 0)
    while True:
        ended = all(process.poll() is not None for process, _ in running)
        for run in runs:
            path = run / "epochs.csv"
            done = max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0
            for epoch in range(told[run], done):
                yield f"{run.name} epoch {epoch + 1}"
            told[run] = max(done, told[run])
        if ended:
            return
        time.sleep(0.2)


def _mosaics(out: Path) -> "list[Picture]":
    from steelyard.report.html.page import Picture

    return [
        Picture(
            title=f"A raw scan that nobody trained on: {mosaic.stem}",
            caption="Stripped, corrected, normalised and segmented by steelyard predict; masks, volumes and a page:",
            content=mosaic.read_bytes(),
            kind="jpeg",
            link="predicted/index.html",
        )
        for mosaic in sorted((out / "predicted" / "figures").glob("*.jpg"))
    ]


def _show(results: "PageTable") -> None:
    from rich import table
    from rich.console import Console

    shown = table.Table(*results.headings)
    for row in results.rows:
        shown.add_row(*map(plain, row))
    Console().print(shown)
