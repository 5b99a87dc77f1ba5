"""A run folder whose network is known: a voxel is a lesion as far as it is brighter than a level."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from steelyard.experiments.configs import smoke
from steelyard.imaging.networks.build import build_network
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import LAST
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.runs.split import Split
from steelyard.imaging.scans.frame import Frame
from steelyard.imaging.train.run_writer import RunWriter

OWN_PIXELS = Frame(shape=(64, 64))


def config(frame: Frame = OWN_PIXELS, width: int = 1) -> TrainingConfig:
    return replace(smoke(), width=width, slices=SliceChoice(count=3, frame=frame))


def brighter_than(level: float, network: nn.Module) -> nn.Module:
    """Give a U-Net weights by which its logit is the input minus a level, where that is positive.

    All is zero but one path: the first level's first feature passes the input on, and the last decoder's first feature
    is that skip. Rectifiers cut the input off at zero, so the level must be positive.
    """
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    levels = [network.encoder[0], network.decoder[-1]]
    with torch.no_grad():
        for layer in (level[index] for level in levels for index in (0, 3)):
            layer.weight[0, 0, 1, 1] = 1.0
        network.output.weight[0, 0] = 10.0
        network.output.bias[0] = -10.0 * level
    return network.eval()


def write_run(path: Path, *, level: float = 195.0, settings: TrainingConfig | None = None) -> Path:
    """A finished run."""
    settings = settings or config()
    path.mkdir(parents=True, exist_ok=True)
    run = RunWriter(path)
    run.begin(settings, Split(train=("a",)), {})
    network = build_network(settings.model, width=settings.width)
    run.save_weights(LAST, brighter_than(level, network))
    return path
