"""Reading checkpoints, which a full disk or a stranger may have damaged.

A checkpoint is read as data, compared with a fresh state, and only then loaded.
"""

import io
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import UserError
from steelyard.files.checks import check_whole
from steelyard.files.regular_files import open_regular
from steelyard.imaging.train.training_state import TrainingState

# What the optimizers keep for every parameter; `step` is a single number, the others have the parameter's shape.
_MOMENTS = {"sgd": {"momentum_buffer"}, "adamw": {"step", "exp_avg", "exp_avg_sq"}}

# What a one-cycle schedule counts; everything else about it follows from the config.
_COUNTED = {"last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step"}

# The largest possible checkpoint: with AdamW it takes three times the network's bytes, and the rest is small.
_LARGEST_MULTIPLE, _LARGEST_REST = 8, 64_000_000  # times the network's bytes; bytes


def load_checkpoint(path: Path, state: TrainingState) -> None:
    """Bring a fresh state to where a checkpoint was written.

    Raises:
        UserError: The file is damaged, is not a checkpoint, or belongs to another run.
    """
    try:
        content = _unpack(_read_bytes(path, state))
    except Exception as error:  # any bytes may be in the file, and torch's reader raises whatever they lead to
        raise UserError(f"{path}: is damaged or no checkpoint; remove it to begin anew.") from error
    try:
        _check(content, state)
        state.load_state_dict(content)
    except Exception as error:  # the values in it may be anything, too
        raise UserError(f"{path}: is the checkpoint of something else; remove it to begin anew.") from error


def _read_bytes(path: Path, state: TrainingState) -> bytes:
    """Return the bytes of a file that is not too large to be a checkpoint of this network."""
    network_bytes = sum(tensor.nbytes for tensor in state.network.state_dict().values())
    largest = _LARGEST_MULTIPLE * network_bytes + _LARGEST_REST
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > largest:
            raise ValueError(f"larger than {largest} bytes")
        return stream.read()


def _unpack(packed: bytes) -> Any:
    """Return the content of a checkpoint; no code in it is run.

    torch does not compare the checksums in its files, so that a flipped bit would be trained on.
    """
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("torch does not compress")
        if sum(entry.file_size for entry in entries) > len(packed):
            raise ValueError("the entries are larger than the file")
        if archive.testzip() is not None:
            raise ValueError("a checksum is wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickles that torch did not write
        return torch.load(io.BytesIO(packed), weights_only=True, map_location="cpu")


def _check(content: Any, state: TrainingState) -> None:
    """Refuse content of another form than the state's: torch loads much of it and fails only in a later step."""
    fresh = state.state_dict()
    if set(content) != set(fresh):
        raise ValueError("other entries")
    if content["version"] != fresh["version"]:
        raise ValueError("another version")
    check_whole("epoch", content["epoch"], 0, state.config.epochs)
    check_whole("waited", content["waited"], 0, state.config.epochs)
    _check_alike(content["best"], fresh["best"])
    for name in ("network", "balancer"):
        _check_alike(content[name], fresh[name])
    _check_optimizer(content["optimizer"], fresh["optimizer"], state)
    if fresh["cycle"] is not None:
        _check_cycle(content["cycle"], fresh["cycle"], content["epoch"] / state.config.epochs)


def _check_optimizer(content: Any, fresh: Mapping[str, Any], state: TrainingState) -> None:
    for group, fresh_group in zip(content["param_groups"], fresh["param_groups"], strict=True):
        if group["params"] != fresh_group["params"]:
            raise ValueError("other parameters")
        # Settings that another version of torch lacks may be missing; the learning rate may not.
        expected = {name: value for name, value in fresh_group.items() if name in {*group, "lr"}}
        _check_alike(group, expected)
    parameters = list(state.network.parameters())
    for index, moments in content["state"].items():
        if set(moments) != _MOMENTS[state.config.optimizer]:
            raise ValueError("another optimizer")
        for name, moment in moments.items():
            if moment is not None:
                _check_moment(name, moment, parameters[index])


def _check_moment(name: str, moment: Tensor, parameter: Tensor) -> None:
    shape = torch.Size() if name == "step" else parameter.shape
    if not moment.is_floating_point() or moment.shape != shape:
        raise ValueError(f"{name} of another parameter")


def _check_cycle(content: Any, fresh: Mapping[str, Any], share: float) -> None:
    """Refuse another schedule, or one that is farther than the share of the epochs that are done."""
    for name, value in fresh.items():
        if name in _COUNTED:
            _check_alike(content.get(name, value), value)
        elif content.get(name, value) != value:
            raise ValueError(f"another {name}")
    check_whole("last_epoch", content["last_epoch"], 0, round(share * fresh["total_steps"]))


def _check_alike(value: Any, expected: Any) -> None:
    """Refuse a value of another type, shape or structure than the expected one."""
    if isinstance(expected, Tensor):
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != (expected.shape, expected.dtype):
            raise TypeError("another tensor")
    elif isinstance(expected, Mapping):
        for name, item in expected.items():
            _check_alike(value[name], item)
    elif isinstance(expected, list | tuple):
        for item, expected_item in zip(value, expected, strict=True):
            _check_alike(item, expected_item)
    elif type(value) is not type(expected) and {type(value), type(expected)} != {int, float}:
        raise TypeError(f"{type(value).__name__}, not {type(expected).__name__}")
