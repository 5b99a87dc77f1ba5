"""Weights files in the safetensors format, which may come from anybody."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.files.regular_files import open_regular
from steelyard.imaging.networks.build import describe_network

# Types as safetensors calls them. Floats of 8 bits are too narrow to predict with.
_FLOATS = {"F16", "BF16", "F32", "F64"}
_INTEGERS = {"I64", "I32", "I16", "I8", "U8"}  # batch normalisation counts its batches

Header = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of every tensor in a file, by name."""


def check_size(path: Path, model: str, *, width: int, options: Mapping[str, Any] | None = None) -> None:
    """Compare the sizes of a network's weights with those in a file, before memory is taken for either.

    Args:
        path: The weights file.
        model: The name of a built-in network.
        width: Features at its first level.
        options: Further keyword arguments of it.

    Raises:
        UserError: The file is not a safetensors file or holds the weights of another architecture.
    """
    expected = describe_network(model, width=width, options=options)
    needed = sum(tensor.numel() for tensor in expected.values())
    header = _read_header(path)
    count = sum(math.prod(shape) for _, shape in header.values())
    if needed != count:
        raise UserError(
            f"{path}: the weights are of another architecture; it holds {count} numbers, and "
            f"{model} of width {width} has {needed}."
        )
    _check_header(path, header, expected)


def load_weights(network: nn.Module, path: Path) -> None:
    """Load the weights in a file into a network.

    Raises:
        UserError: The file is not a safetensors file or holds the weights of another architecture.
    """
    expected = network.state_dict()
    _check_header(path, _read_header(path), expected)
    try:
        weights: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    for name, tensor in expected.items():
        # Checked in the network's own precision: a large number of 64 bits is infinite in 32.
        weights[name] = weights[name].to(tensor.dtype)
        if not weights[name].isfinite().all():
            raise UserError(f"{path}: {name} holds NaN or infinite numbers.")
    network.load_state_dict(weights)


def _read_header(path: Path) -> Header:
    """Read the header of a file; the numbers themselves are not read."""
    header: Header = {}
    try:
        open_regular(path).close()  # safetensors itself would wait for ever for the other end of a pipe
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118, it is not a dict
                tensor = file.get_slice(name)
                header[name] = (str(tensor.get_dtype()), tuple(tensor.get_shape()))
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    return header


def _check_header(path: Path, header: Header, expected: Mapping[str, Tensor]) -> None:
    """Refuse weights of other names, shapes or types than a network's."""
    fault = f"{path}: the weights are of another architecture"
    for name in sorted(set(expected) ^ set(header)):  # those that one side alone has
        verb = "lacks" if name in expected else "holds"
        raise UserError(f"{fault}; the file {verb} {name!r:.80}.")
    for name, tensor in expected.items():
        kind, shape = header[name]
        if tensor.shape != shape:
            raise UserError(f"{fault}; {name} is {shape}, not {tuple(tensor.shape)}.")
        if kind not in _allowed_kinds(tensor.dtype):
            raise UserError(f"{path}: {name} holds numbers of type {kind}, which are not this network's weights.")


def _allowed_kinds(dtype: torch.dtype) -> set[str]:
    """Return the types in a file that may be loaded into a tensor of this type."""
    if dtype.is_floating_point:
        return _FLOATS
    if dtype == torch.bool:
        return {"BOOL"}
    if dtype == torch.complex64:
        return {"C64"}
    return _INTEGERS


def _unreadable(path: Path, error: Exception) -> UserError:
    lines = str(error).splitlines() or [type(error).__name__]
    return UserError(f"{path}: cannot be read as safetensors ({lines[0][:120]}).")
