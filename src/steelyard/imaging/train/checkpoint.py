"""Checkpoints, which a full disk or a stranger may have damaged: read as data, checked, then taken over."""

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

# What the optimizers keep of every parameter; `step` is a single number, the others have the parameter's shape.
_MOMENTS = {"sgd": {"momentum_buffer"}, "adamw": {"step", "exp_avg", "exp_avg_sq"}}

# What a one-cycle schedule counts; everything else about it follows from the config.
_COUNTED = {"last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step"}


# The largest file that can be a checkpoint. AdamW's takes three times the network's bytes, and the rest is small.
_LARGEST_SHARE, _LARGEST_REST = 8, 64_000_000


def load_checkpoint(path: Path, training_state: TrainingState) -> None:
    """Bring a fresh training_state to where a checkpoint was written.

    Raises:
        UserError: The file is damaged, is no checkpoint, or is one of another run.
    """
    try:
        state = _read(_content(path, training_state))
    except Exception as error:  # any bytes may be in the file, and torch's reader raises whatever they lead to
        raise UserError(f"{path}: is damaged or no checkpoint; remove it to begin anew.") from error
    try:
        _check(state, training_state)
        training_state.load_state_dict(state)
    except Exception as error:  # as the values in it may be anything
        raise UserError(f"{path}: is the checkpoint of something else; remove it to begin anew.") from error


def _content(path: Path, training_state: TrainingState) -> bytes:
    """Return the bytes of a file that is not too large to be the training_state's checkpoint."""
    tensors = training_state.network.state_dict().values()
    largest = _LARGEST_SHARE * sum(tensor.nbytes for tensor in tensors) + _LARGEST_REST
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > largest:
            raise ValueError(f"larger than {largest} bytes")
        return stream.read()


def _read(content: bytes) -> Any:
    """Return what a checkpoint holds; nothing in it is run.

    torch does not compare the checksums in its files, so that a flipped bit would be trained on.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("torch does not compress")
        if sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("the entries are larger than the file")
        if archive.testzip() is not None:
            raise ValueError("a checksum is wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickles that torch did not write
        return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def _check(state: Any, training_state: TrainingState) -> None:
    """Refuse a state that is not of the training_state's form: torch takes over much that only fails in a later step."""
    fresh = training_state.state_dict()
    if set(state) != set(fresh):
        raise ValueError("other entries")
    check_whole("epoch", state["epoch"], 0, training_state.config.epochs)
    check_whole("waited", state["waited"], 0, training_state.config.epochs)
    _check_alike(state["best"], fresh["best"])
    for name in ("network", "balancer"):
        _check_alike(state[name], fresh[name])
    _check_optimizer(state["optimizer"], fresh["optimizer"], training_state)
    if fresh["cycle"] is not None:
        _check_cycle(state["cycle"], fresh["cycle"], state["epoch"] / training_state.config.epochs)


def _check_optimizer(state: Any, fresh: Mapping[str, Any], training_state: TrainingState) -> None:
    for group, expected in zip(state["param_groups"], fresh["param_groups"], strict=True):
        if group["params"] != expected["params"]:
            raise ValueError("other parameters")
        _check_alike(group, {name: value for name, value in expected.items() if name in group or name == "lr"})
    parameters = list(training_state.network.parameters())
    for place, moments in state["state"].items():
        if set(moments) != _MOMENTS[training_state.config.optimizer]:
            raise ValueError("another optimizer")
        for name, moment in moments.items():
            shape = torch.Size() if name == "step" else parameters[place].shape
            if moment is not None and (not moment.is_floating_point() or moment.shape != shape):
                raise ValueError(f"{name} of another parameter")


def _check_cycle(state: Any, fresh: Mapping[str, Any], share: float) -> None:
    """Refuse another schedule, or one that is farther than the share of the epochs that are done."""
    for name, value in fresh.items():
        if name in _COUNTED:
            _check_alike(state.get(name, value), value)
        elif state.get(name, value) != value:
            raise ValueError(f"another {name}")
    check_whole("last_epoch", state["last_epoch"], 0, round(share * fresh["total_steps"]))


def _check_alike(value: Any, expected: Any) -> None:
    """Refuse a value of another type, shape or structure than the expected one."""
    if isinstance(expected, Tensor):
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != (expected.shape, expected.dtype):
            raise TypeError("another tensor")
    elif isinstance(expected, Mapping):
        for name, item in expected.items():
            _check_alike(value[name], item)
    elif isinstance(expected, list | tuple):
        for item, other in zip(value, expected, strict=True):
            _check_alike(item, other)
    elif type(value) is not type(expected) and {type(value), type(expected)} != {int, float}:
        raise TypeError(f"{type(value).__name__}, not {type(expected).__name__}")
