"""The trained network of a run directory, which may come from anybody."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from steelyard.errors import UserError
from steelyard.imaging.frame import Frame
from steelyard.imaging.provenance import digest
from steelyard.imaging.segmentation.config import TrainingConfig
from steelyard.imaging.segmentation.networks import build_network, is_code
from steelyard.imaging.segmentation.run import BEST, CONFIG, LAST, RunDirectory
from steelyard.imaging.volumes import Volume

_LARGEST = 1024  # rows or columns of a plane; more would be a mistake, and memory


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network and what it expects.

    Args:
        network: In evaluation mode.
        frame: The planes that it was trained on.
        about: What the records of its results say of it.
    """

    network: nn.Module
    frame: Frame
    about: Mapping[str, Any]

    def frame_for(self, brain: Volume) -> Frame:
        """Return planes for one brain: the frame, or, if it has no size of its own, one that the brain fits."""
        return self.frame if self.frame.shape else replace(self.frame, shape=(16, 16)).covering(brain)


def load_model(run: Path, *, model: str | None = None) -> Model:
    """Load the network of a run; sizes are checked before memory is taken.

    Args:
        run: The run directory.
        model: The network's import path, from the user, if it is no network of ours.

    Raises:
        UserError: The run is not one, its settings are impossible, its weights are missing, damaged or of another
            network, or the network is code that the user did not name.
    """
    if not run.is_dir():
        raise UserError(f"{run}: there is no such run directory.")
    directory = RunDirectory(run)
    try:
        config = directory.config
        _check(config)
        weights = run / (BEST if config.kept == "best" else LAST)
        if not is_code(config.model) and weights.exists():
            _check_size(weights, config)
        network = directory.network(model=model)
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{run / CONFIG}: a setting is of the wrong type ({error}).") from error
    frame = config.slices.frame
    about = {"Name": config.model, "Width": config.width, "Options": dict(config.options)}
    shown = {"Shape": list(frame.shape) if frame.shape else None, "PixelMm": frame.pixel_mm}
    return Model(network=network, frame=frame, about=about | {"Frame": shown, "SHA256": digest(weights)})


def _check(config: TrainingConfig) -> None:
    shape = config.slices.frame.shape
    if not isinstance(config.model, str) or not isinstance(config.options, Mapping):
        raise TypeError("model must be a name and options an object")
    if shape is None:
        return
    if len(shape) != 2 or not all(isinstance(size, int) and 1 <= size <= _LARGEST for size in shape):
        raise TypeError(f"shape must be two whole numbers of at most {_LARGEST}, not {shape}")


def _check_size(path: Path, config: TrainingConfig) -> None:
    """Compare the sizes that the config asks for with those in the file, without memory for either."""
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
