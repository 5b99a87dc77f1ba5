"""Weights files, which may come from anybody."""

import math
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.imaging.segmentation.config import TrainingConfig
from steelyard.imaging.segmentation.networks import build_network


def check_size(path: Path, config: TrainingConfig) -> None:
    """Compare the sizes that a config asks for with those in a file, before memory is taken for either.

    Raises:
        UserError: The file is no safetensors file or holds the weights of another architecture.
    """
    with torch.device("meta"):
        wanted = build_network(config.model, width=config.width, options=config.options).state_dict()
    try:
        with safe_open(path, "pt") as held:
            found = {name: tuple(held.get_slice(name).get_shape()) for name in held.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error}).") from error
    needed = sum(math.prod(tensor.shape) for tensor in wanted.values())
    there = sum(math.prod(shape) for shape in found.values())
    if needed != there:
        raise UserError(
            f"{path}: the weights are of another architecture; it holds {there} numbers, and "
            f"{config.model} of width {config.width} has {needed}."
        )


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
