"""The run directory: everything about one run, in files that anyone may be sent.

A weights file is data: safetensors holds numbers only, JSON and CSV are read as such, and the checkpoint is loaded
without unpickling objects. A network that is named by import path is code and is never imported on a file's word.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from steelyard.errors import UserError
from steelyard.files.records import read_json
from steelyard.files.writing import (
    append_text,
    as_csv,
    check_folder,
    holding,
    is_orphan,
    reason,
    refuse_link,
    remove,
    write_bytes,
    write_json,
)
from steelyard.imaging.networks.build import build_network, is_code
from steelyard.imaging.networks.weights_file import check_size, load_weights
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.environment import describe_environment
from steelyard.imaging.runs.split import PARTS, Split, read_split
from steelyard.imaging.runs.tables import epoch_row, step_rows
from steelyard.imaging.train.checkpoint import load_checkpoint
from steelyard.imaging.train.trainee import Trainee
from steelyard.imaging.train.training import EpochRecord

CONFIG, SPLIT, ENVIRONMENT = "config.json", "split.json", "environment.json"
EPOCHS, STEPS, METRICS = "epochs.csv", "steps.csv", "metrics.csv"
CHECKPOINT, BEST, LAST = "checkpoint.pt", "best.safetensors", "last.safetensors"

_ACCELERATORS = "accelerators"


class RunDirectory:
    """A folder that holds one run.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the folder while a run works on it, and remove what a killed one left half written.

        Raises:
            UserError: It holds something else, another run works on it, or it cannot be written.
        """
        with holding(self.path):
            try:
                self.check_folder()
                for path in self.path.iterdir():
                    if is_orphan(path):
                        remove(path)
                yield
            except OSError as error:
                raise UserError(f"{self.path}: {reason(error)}.") from error

    def check_folder(self) -> None:
        """Make sure that the folder can be written, and is free or holds a run; change nothing.

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

    @property
    def weights(self) -> Path:
        """The weights that the run is judged by."""
        return self.path / (BEST if self.config.kept == "best" else LAST)

    def begin(self, config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> None:
        """Write down what the run is, or make sure that it is the one that is there.

        Raises:
            UserError: The folder holds a run with other settings or of other data, and which.
        """
        self.check(config, split, digests)
        for name, content in _identity(config, split, digests).items():
            if not (self.path / name).exists():
                write_json(self.path / name, content)
        if not (self.path / ENVIRONMENT).exists():
            write_json(self.path / ENVIRONMENT, describe_environment())

    def trained_on(self, accelerator: Mapping[str, Any]) -> None:
        """Add to the environment what the run is trained on from here; one that goes on elsewhere has several."""
        environment = self._json(ENVIRONMENT)
        held = environment.get(_ACCELERATORS)
        known = held if isinstance(held, list) else []
        if known[-1:] != [dict(accelerator)]:
            write_json(self.path / ENVIRONMENT, environment | {_ACCELERATORS: [*known, dict(accelerator)]})

    def check(self, config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> None:
        """Make sure that a run that is there, if any, is this one.

        Raises:
            UserError: It has other settings or is of other data, and which.
        """
        for name, content in _identity(config, split, digests).items():
            if not (self.path / name).exists():
                continue
            # The config is parsed, because its file may hold another name of the same method.
            held = self.config.as_dict() if name == CONFIG else self._json(name)
            refuse_difference(self.path / name, held, content)

    @property
    def config(self) -> TrainingConfig:
        """The run's config."""
        held = self._json(CONFIG)
        try:
            return TrainingConfig.from_dict(held)
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from error

    @property
    def split(self) -> Split:
        """Who trained, validated and tested."""
        try:
            return read_split(self._json(SPLIT).get("split"))
        except UserError as error:
            raise UserError(f"{self.path / SPLIT}: holds no split, {error}") from error

    @property
    def digests(self) -> dict[str, str]:
        """A digest of each subject's slices."""
        held = self._json(SPLIT).get("digests", {})
        if not isinstance(held, dict):
            raise UserError(f"{self.path / SPLIT}: digests must be an object.")
        return {key: str(value) for key, value in held.items()}

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return (self.path / "finished.json").exists()

    def resume(self, trainee: Trainee, *, may_write: bool = True) -> None:
        """Bring a trainee to where the run was, and forget what was written after that.

        Args:
            trainee: A fresh one.
            may_write: False for all but one of several processes.
        """
        path = self.path / CHECKPOINT
        tables = [self.path / name for name in (EPOCHS, STEPS)] if may_write else []
        for table in tables:
            refuse_link(table)
        if path.exists():
            load_checkpoint(path, trainee)
        elif may_write:
            self.save_weights(LAST, trainee.network)  # so that there are good weights from the first step on
        for table in tables:
            _truncate(table, trainee.epoch)

    def record(self, trainee: Trainee, epoch: EpochRecord) -> None:
        """Write one epoch: rows and weights first, the checkpoint last, so that no kill leaves a half of it."""
        _append(self.path / EPOCHS, [epoch_row(epoch, trainee.config)])
        _append(self.path / STEPS, step_rows(epoch, trainee.config))
        if epoch.better:
            self.save_weights(BEST, trainee.network)
        self.save_weights(LAST, trainee.network)
        packed = io.BytesIO()
        torch.save(trainee.state_dict(), packed)
        write_bytes(self.path / CHECKPOINT, packed.getvalue())

    def conclude(self, trainee: Trainee) -> None:
        """Say that the run is finished; the checkpoint has served."""
        write_json(self.path / "finished.json", {"epochs": trainee.epoch, "best": trainee.best})
        self.forget_checkpoint()

    def forget_checkpoint(self) -> None:
        """Remove the checkpoint of a finished run."""
        remove(self.path / CHECKPOINT)

    def network(self, *, model: str | None = None) -> nn.Module:
        """Return the trained network, ready to predict.

        Args:
            model: The network's import path, from the user: without it a network that is not ours is not built.

        Raises:
            UserError: There are no weights, they are damaged or of another architecture, or the network is code.
        """
        config = self.config
        if is_code(config.model) and model != config.model:
            raise UserError(
                f"{self.path / CONFIG}: the network is {config.model!r}, which is code of somebody's; "
                f"if you trust it, say --model {config.model}."
            )
        path = self.weights
        if not path.exists():
            raise UserError(f"{path}: there are no weights; train the run first.")
        if not is_code(config.model):
            check_size(path, config)
        network = build_network(config.model, width=config.width, options=config.options)
        load_weights(network, path)
        return network.eval()

    def save_weights(self, name: str, network: nn.Module) -> None:
        """Write a network's weights under `BEST` or `LAST`."""
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in network.state_dict().items()}
        write_bytes(self.path / name, save(tensors))

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            raise UserError(f"{path}: there is no such file; this is no run directory.")
        return read_json(path)


def split_as_json(split: Split) -> dict[str, Any]:
    """Return a split as split.json holds it."""
    held: dict[str, Any] = {part: list(getattr(split, part)) for part in PARTS}
    if split.withheld:
        held["withheld"] = {contrast: list(names) for contrast, names in split.withheld.items()}
    return held


def _identity(config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return what the files hold that say which run it is."""
    return {CONFIG: config.as_dict(), SPLIT: {"split": split_as_json(split), "digests": dict(digests)}}


def refuse_difference(path: Path, held: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Refuse to go on with a file that says something else.

    Raises:
        UserError: What the file holds is not the content, and where they differ.
    """
    held, wanted = json.loads(json.dumps(held)), json.loads(json.dumps(content))
    for name in dict.fromkeys((*held, *wanted)):
        if held.get(name) != wanted.get(name):
            was, now = json.dumps(held.get(name)), json.dumps(wanted.get(name))
            if len(was) + len(now) > 120:
                raise UserError(f"{path}: the run there has another {name}; give another folder.")
            raise UserError(f"{path}: the run there has {name} {was}, not {now}; give another folder.")


def _append(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Add rows to a CSV file, with a header if it is new."""
    table = as_csv(list(rows))
    if path.is_file() and path.stat().st_size:
        table = table.partition("\n")[2]
    append_text(path, table)


def _truncate(path: Path, epochs: int) -> None:
    """Drop the rows of epochs that were not finished."""
    if not path.is_file():
        return
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
        kept = [line for line in lines if line.endswith("\n") and int(line.split(",", 1)[0]) < epochs]
    except ValueError as error:
        raise UserError(f"{path}: is damaged; remove the folder to begin anew.") from error
    write_bytes(path, "".join([header, *kept] if kept else []).encode())
