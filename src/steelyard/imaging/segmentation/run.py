"""The run directory: everything about one run, in files that anyone may be sent.

A weights file is data: safetensors holds numbers only, JSON and CSV are read as such, and the checkpoint is loaded
without unpickling objects. A network that is named by import path is code and is never imported on a file's word.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.imaging.segmentation.config import TrainingConfig
from steelyard.imaging.segmentation.environment import describe_environment
from steelyard.imaging.segmentation.networks import build_network, is_code
from steelyard.imaging.segmentation.split import PARTS, Split
from steelyard.imaging.segmentation.tables import epoch_row, step_rows
from steelyard.imaging.segmentation.trainee import Trainee
from steelyard.imaging.segmentation.training import EpochRecord
from steelyard.imaging.writing import locked, reason, write_bytes, write_json

CONFIG, SPLIT, ENVIRONMENT = "config.json", "split.json", "environment.json"
EPOCHS, STEPS, METRICS = "epochs.csv", "steps.csv", "metrics.csv"
CHECKPOINT, BEST, LAST = "checkpoint.pt", "best.safetensors", "last.safetensors"


class RunDirectory:
    """A folder that holds one run.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self) -> AbstractContextManager[None]:
        """Hold the folder while a run works on it.

        Raises:
            UserError: It holds something else, another run works on it, or it cannot be written.
        """
        try:
            # a lock, or a file that a kill left half written
            held = [one.name for one in self.path.iterdir() if one.name[0] != "."] if self.path.is_dir() else []
            if held and CONFIG not in held:
                raise UserError(f"{self.path}: is not empty and holds no run; nothing was written.")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path}: {reason(error)}.") from error
        return locked(self.path)

    def begin(self, config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> None:
        """Write down what the run is, or make sure that it is the one that is there.

        Raises:
            UserError: The folder holds a run with other settings or of other data, and which.
        """
        self.check(config, split, digests)
        for unfinished in self.path.glob(".*.part"):
            unfinished.unlink()
        for name, content in _identity(config, split, digests).items():
            if not (self.path / name).exists():
                write_json(self.path / name, content)
        if not (self.path / ENVIRONMENT).exists():
            write_json(self.path / ENVIRONMENT, describe_environment())

    def check(self, config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> None:
        """Make sure that a run that is there, if any, is this one.

        Raises:
            UserError: It has other settings or is of other data, and which.
        """
        for name, content in _identity(config, split, digests).items():
            if (self.path / name).exists():
                refuse_difference(self.path / name, self._json(name), content)

    @property
    def config(self) -> TrainingConfig:
        """The run's config."""
        try:
            return TrainingConfig.from_dict(self._json(CONFIG))
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from error

    @property
    def split(self) -> Split:
        """Who trained, validated and tested."""
        held: Any = self._json(SPLIT).get("split")
        try:
            withheld = {str(name): tuple(map(str, lost)) for name, lost in held.get("withheld", {}).items()}
            return Split(withheld=withheld, **{part: tuple(map(str, held[part])) for part in PARTS})
        except (AttributeError, KeyError, TypeError, UserError) as error:
            raise UserError(f"{self.path / SPLIT}: holds no split.") from error

    @property
    def digests(self) -> dict[str, str]:
        """A digest of each subject's slices."""
        held = self._json(SPLIT).get("digests")
        return {str(key): str(value) for key, value in held.items()} if isinstance(held, dict) else {}

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
        if path.exists():
            trainee.load_state_dict(_load_checkpoint(path))
        for name in (EPOCHS, STEPS) if may_write else ():
            _truncate(self.path / name, trainee.epoch)

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
        (self.path / CHECKPOINT).unlink(missing_ok=True)

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
        network = build_network(config.model, width=config.width, options=config.options)
        path = self.path / (BEST if config.kept == "best" else LAST)
        if not path.exists():
            raise UserError(f"{path}: there are no weights; train the run first.")
        load_weights(network, path)
        return network.eval()

    def save_weights(self, name: str, network: nn.Module) -> None:
        """Write a network's weights under `BEST` or `LAST`."""
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in network.state_dict().items()}
        write_bytes(self.path / name, save(tensors))

    def _json(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UserError: There is none, in one line that names the file.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; this is no run directory.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON.") from error
    if not isinstance(held, dict):
        raise UserError(f"{path}: a JSON object is needed.")
    return held


def load_weights(network: nn.Module, path: Path) -> None:
    """Give a network the weights in a file.

    Raises:
        UserError: The file is no safetensors file or holds the weights of another architecture.
    """
    try:
        weights: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error}).") from error
    wanted = network.state_dict()
    for name in sorted(set(wanted) ^ set(weights)):
        side = "lacks" if name in wanted else "holds"
        raise UserError(f"{path}: the weights are of another architecture; the file {side} {name}.")
    for name, tensor in wanted.items():
        if tensor.shape != weights[name].shape:
            found, needed = tuple(weights[name].shape), tuple(tensor.shape)
            raise UserError(f"{path}: the weights are of another architecture; {name} is {found}, not {needed}.")
        if weights[name].is_floating_point() and not weights[name].isfinite().all():
            raise UserError(f"{path}: {name} holds NaN or infinite numbers.")
    network.load_state_dict(weights)


def _load_checkpoint(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, UnpicklingError, EOFError, KeyError, ValueError) as error:
        raise UserError(f"{path}: is damaged or no checkpoint; remove it to begin anew.") from error
    return state


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
    wanted = json.loads(json.dumps(content))
    for name in dict.fromkeys((*held, *wanted)):
        if held.get(name) != wanted.get(name):
            was, now = json.dumps(held.get(name)), json.dumps(wanted.get(name))
            if len(was) + len(now) > 120:
                raise UserError(f"{path}: the run there has another {name}; give another folder.")
            raise UserError(f"{path}: the run there has {name} {was}, not {now}; give another folder.")


def _append(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Add rows to a CSV file, with a header if it is new."""
    listed = list(rows)
    try:
        with path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(listed[0]), lineterminator="\n")
            if stream.tell() == 0:
                writer.writeheader()
            writer.writerows(listed)
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error


def _truncate(path: Path, epochs: int) -> None:
    """Drop the rows of epochs that were not finished."""
    if not path.exists():
        return
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    kept = [line for line in lines if line.endswith("\n") and int(line.split(",", 1)[0]) < epochs]
    write_bytes(path, "".join([header, *kept] if kept else []).encode())
