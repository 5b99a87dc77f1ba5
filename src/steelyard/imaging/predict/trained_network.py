"""The trained network of a run directory, which may come from anybody."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from steelyard.errors import UserError
from steelyard.files.regular_files import digest
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.scans.frame import Frame


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
    directory = RunFolder(run)
    config = directory.config
    network = directory.network(model=model)
    frame = config.slices.frame
    about = {"Name": config.model, "Width": config.width, "Options": dict(config.options)}
    shown = {"Shape": list(frame.shape) if frame.shape else None, "PixelMm": frame.pixel_mm}
    return Model(network=network, frame=frame, about=about | {"Frame": shown, "SHA256": digest(directory.weights)})
