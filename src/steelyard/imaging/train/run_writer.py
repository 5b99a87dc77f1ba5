"""Writing a run folder, epoch by epoch, so that a run that is killed at any moment can be resumed."""

import io
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save
from torch import nn

import steelyard
from steelyard.errors import UserError, reason
from steelyard.files.atomic import append_text, is_orphan, remove, write_bytes
from steelyard.files.destinations import check_folder, refuse_link
from steelyard.files.locks import lock_folder
from steelyard.files.records import as_csv, write_json
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import (
    ACCELERATORS,
    AUDIT,
    BEST,
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    EPOCHS,
    FINISHED,
    LAST,
    SPLIT,
    STEPS,
    RunFolder,
    identity,
)
from steelyard.imaging.runs.split import Split
from steelyard.imaging.train.audit_record import describe_audit
from steelyard.imaging.train.checkpoint import load_checkpoint
from steelyard.imaging.train.records import EpochRecord, epoch_row, step_rows
from steelyard.imaging.train.training_state import TrainingState

_PACKAGES = ("torch", "numpy", "scipy", "lightning", "nibabel", "SimpleITK", "deepbet", "safetensors", "monai")


@final
class RunWriter:
    """Writes the folder of one run.

    Args:
        path: The folder.

    Attributes:
        folder: The same folder, to read from.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = RunFolder(path)

    def check_folder(self) -> None:
        """Make sure that the folder can be written, and is empty or holds a run; change nothing.

        Raises:
            UserError: It holds something else, or cannot be written.
        """
        check_folder(self.path)
        if not self.path.is_dir():
            return
        try:
            names = [path.name for path in self.path.iterdir() if path.name[0] != "."]
        except OSError as error:
            raise UserError(f"{self.path}: {reason(error)}.") from error
        if names and CONFIG not in names:
            raise UserError(f"{self.path}: is not empty and holds no run; nothing was written.")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder while a run works on it, and remove unfinished files of a run that was killed.

        Raises:
            UserError: It holds something else, another run works on it, or it cannot be written.
        """
        with lock_folder(self.path):
            try:
                self.check_folder()
                for path in self.path.iterdir():
                    if is_orphan(path):
                        remove(path)
                yield
            except OSError as error:
                raise UserError(f"{self.path}: {reason(error)}.") from error

    def begin(self, config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> None:
        """Write what the run is, or make sure that the folder holds this run; what a failed start left is replaced.

        Raises:
            UserError: The folder holds a run with other settings or other data.
        """
        self.check_same(config, split, digests)
        if not self.folder.has_epochs:
            self._remove_failed_start()
        for name, content in identity(config, split, digests).items():
            if not (self.path / name).exists():
                write_json(self.path / name, content)
        if not (self.path / ENVIRONMENT).exists():
            write_json(self.path / ENVIRONMENT, describe_environment())

    def check_same(self, config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> None:
        """Make sure that the run in the folder, if an epoch of it was trained, is this run.

        Raises:
            UserError: It has other settings or other data, or its config is not one of a run.
        """
        if self.folder.has_epochs:
            self.folder.check_same(config, split, digests)
        elif (self.path / CONFIG).exists():
            _ = self.folder.config  # or a config.json of another program would be replaced

    def _remove_failed_start(self) -> None:
        """Remove what a start left that trained no epoch.

        The config goes last: until then the folder counts as a run's, so a kill in between does no harm.
        """
        for name in (STEPS, AUDIT, LAST, ENVIRONMENT, SPLIT, CONFIG):
            remove(self.path / name)

    def add_accelerator(self, accelerator: Mapping[str, Any]) -> None:
        """Add the device that trains from here on to environment.json; a resumed run may have several."""
        environment = self.folder.read(ENVIRONMENT)
        earlier = environment.get(ACCELERATORS)
        if not isinstance(earlier, list):
            earlier = []
        if earlier[-1:] != [dict(accelerator)]:
            write_json(self.path / ENVIRONMENT, environment | {ACCELERATORS: [*earlier, dict(accelerator)]})

    def resume(self, state: TrainingState, *, may_write: bool = True) -> None:
        """Bring a state to the last checkpoint, and drop table rows that were written after it.

        Args:
            state: A fresh one.
            may_write: False for all but one of several processes.
        """
        checkpoint = self.path / CHECKPOINT
        tables = []
        if may_write:
            tables = [self.path / EPOCHS, self.path / STEPS]
        for table in tables:
            refuse_link(table)
        if checkpoint.exists():
            load_checkpoint(checkpoint, state)
        elif may_write:
            self.save_weights(LAST, state.network)  # so that there are finite weights even if the first step fails
        for table in tables:
            _truncate(table, state.epoch)

    def record(self, state: TrainingState, epoch: EpochRecord) -> None:
        """Write one epoch: rows and weights first, the checkpoint last, so that a kill never loses half an epoch.

        The audit is written anew with each epoch: it follows from the balancer's state, which the checkpoint holds.
        """
        _append(self.path / EPOCHS, [epoch_row(epoch, state.config)])
        _append(self.path / STEPS, step_rows(epoch, state.config))
        if epoch.better:
            self.save_weights(BEST, state.network)
        self.save_weights(LAST, state.network)
        if state.measures_transfer:
            write_json(self.path / AUDIT, describe_audit(state.balancer.audit()))
        packed = io.BytesIO()
        torch.save(state.state_dict(), packed)
        write_bytes(self.path / CHECKPOINT, packed.getvalue())

    def finish(self, state: TrainingState) -> None:
        """Mark the run as finished and remove its checkpoint."""
        write_json(self.path / FINISHED, {"epochs": state.epoch, "best": state.best})
        self.remove_checkpoint()

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint of a finished run."""
        remove(self.path / CHECKPOINT)

    def save_weights(self, name: str, network: nn.Module) -> None:
        """Write a network's weights under `BEST` or `LAST`."""
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in network.state_dict().items()}
        write_bytes(self.path / name, save(tensors))


def _append(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Add rows to a CSV file, with a header if it is new."""
    table = as_csv(list(rows))
    if path.is_file() and path.stat().st_size:
        table = table.partition("\n")[2]
    append_text(path, table)


def _truncate(path: Path, epochs: int) -> None:
    """Drop the rows of epochs that were not finished; the first column is the epoch."""
    if not path.is_file():
        return
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
        finished = []
        for line in lines:
            if line.endswith("\n") and int(line.split(",", 1)[0]) < epochs:
                finished.append(line)
    except ValueError as error:
        raise UserError(f"{path}: is damaged; remove the folder to begin anew.") from error
    text = "".join([header, *finished]) if finished else ""
    write_bytes(path, text.encode())


def describe_environment() -> dict[str, Any]:
    """Return the versions, the machine and, in a checkout, the git commit that a run is trained with."""
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "steelyard": steelyard.__version__,
        "python": sys.version.split()[0],
        "packages": versions,
        "machine": f"{platform.system()} {platform.machine()}",
        "git": _git_state(),
    }


def describe_accelerator(device: torch.device, *, devices: int = 1) -> dict[str, Any]:
    """Return the kind of device that trains, how many there are, and its name where torch has one.

    >>> describe_accelerator(torch.device("cpu"), devices=2)
    {'kind': 'cpu', 'devices': 2}
    """
    accelerator: dict[str, Any] = {"kind": device.type, "devices": devices}
    if device.type == "cuda":
        accelerator["name"] = torch.cuda.get_device_name(device)
    return accelerator


def _git_state() -> dict[str, Any] | None:
    """Return the commit, and whether files differ from it; `None` outside a checkout of steelyard."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "modified": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; `None` if there is no git, or it fails."""
    try:
        process = subprocess.run(  # noqa: S603
            ["git", *arguments],  # noqa: S607
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,  # seconds
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
