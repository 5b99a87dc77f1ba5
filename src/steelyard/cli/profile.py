"""`steelyard profile`: where the time of a training epoch goes."""

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, default, plain, say

if TYPE_CHECKING:
    from steelyard.benchmark.epoch_profile import EpochProfile
    from steelyard.imaging.train.launch import TrainingJob


@dataclass(frozen=True)
class Profile(Command):
    """Show where the time of a training epoch goes.

    The parts are data, augmentation, vote, forward, backward and more, on the CPU. It is the first epoch of
    `steelyard train` with the same options; nothing of it is kept.
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The output folder of `steelyard preprocess`."""
    experiment: str = "standard"
    """The config to start from: paper, standard, desk, glioma, demo or smoke."""
    method: Annotated[str | None, default("the config's; equal in all")] = None
    """The method, as in `steelyard train`."""
    model: Annotated[str | None, default("the config's; unet in all")] = None
    """unet, lightweight, monai:BasicUNet or package.module:callable."""
    width: Annotated[int | None, default("the config's; 16 in standard")] = None
    """Features at the network's first level."""
    threads: int = 1
    """CPU threads."""
    folds: int = 5
    """The number of parts that the subjects are divided into."""
    set: Annotated[tuple[str, ...], default("none", metavar="NAME=VALUE…")] = ()
    """Any other setting as NAME=VALUE."""
    json: Annotated[Path | None, default("none")] = None
    """A file for the numbers; it must not exist yet."""

    def run(self) -> int:
        """Train an epoch, print the parts, write them on request."""
        from steelyard.benchmark.epoch_profile import profile_epoch
        from steelyard.files.destinations import check_file
        from steelyard.files.records import write_json

        if self.json is not None:
            check_file(self.json)
        with TemporaryDirectory(prefix="steelyard-") as scratch:
            profile = profile_epoch(self._job(Path(scratch) / "run"))
        _show(profile)
        if self.json is not None:
            write_json(self.json, asdict(profile))
            say(f"{self.json} has the numbers")
        return 0

    def _job(self, out: Path) -> "TrainingJob":
        from steelyard.experiments.single_run import SplitChoice, choose_config, prepare_job

        changes = {"method": self.method, "model": self.model, "width": self.width, "threads": self.threads}
        config = choose_config(self.experiment, self.set, changes)
        return prepare_job(config, self.data, out, SplitChoice(folds=self.folds), cache=None)


def _show(profile: "EpochProfile") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=plain(f"One epoch of {profile.method}: {profile.steps} steps, {profile.total:.2f} s"))
    for column in ("part", "seconds", "ms a step", "share"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part, seconds in profile.seconds.items():
        milliseconds, share = 1000 * seconds / profile.steps, 100 * seconds / profile.total
        table.add_row(part, f"{seconds:.3f}", f"{milliseconds:.2f}", f"{share:.1f} %")
    Console().print(table)
