"""The trained network of a run folder, which may come from anybody."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from steelyard.errors import UserError
from steelyard.files.regular_files import digest
from steelyard.imaging.networks.accelerator import Accelerator, choose_accelerator
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.scans.frame import Frame


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A trained network and what it expects.

    Args:
        network: In evaluation mode.
        frame: The planes that it was trained on.
        description: What the records of its results say of it.
    """

    network: nn.Module
    frame: Frame
    description: Mapping[str, Any]


def load_trained_network(run: Path, *, model: str | None = None, accelerator: Accelerator = "auto") -> TrainedNetwork:
    """Load the network of a run; sizes are checked before memory is taken.

    Args:
        run: The run folder.
        model: The import path of the network's code, from the user, if it is not one of steelyard's networks.
        accelerator: What it runs on.

    Raises:
        UserError: The machine has no such accelerator, the folder is not a run, its settings are impossible, its
            weights are missing, damaged or of another network, or the network is code that the user did not name.
    """
    if not run.is_dir():
        raise UserError(f"{run}: there is no such run folder. `steelyard train` makes one.")
    folder = RunFolder(run)
    config = folder.config
    device = choose_accelerator(accelerator)
    network = folder.network(model=model).to(device)
    frame = config.slices.frame
    shape = None if frame.shape is None else list(frame.shape)
    description = {
        "Name": config.model,
        "Width": config.width,
        "Options": dict(config.options),
        "Frame": {"Shape": shape, "PixelMm": frame.pixel_mm},
        "SHA256": digest(folder.weights),
    }
    return TrainedNetwork(network=network, frame=frame, description=description)
