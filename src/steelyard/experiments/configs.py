"""Named training configs to start from: each is a function."""

from collections.abc import Callable
from dataclasses import replace

from steelyard.files.checks import check_choice
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.slice_settings import Augmentation, SliceChoice
from steelyard.imaging.scans.frame import Frame


def paper() -> TrainingConfig:
    """All settings of the paper, for a GPU: U-Net of width 64, SGD, plateau schedule, random mixed batches."""
    return TrainingConfig(slices=SliceChoice(frame=Frame(shape=(256, 224))))


def standard() -> TrainingConfig:
    """A network to use, trained on two cores: the paper's U-Net on smaller planes, all slices, one-cycle AdamW."""
    return TrainingConfig(
        width=16,
        slices=SliceChoice(count=None, frame=Frame(shape=(128, 96), pixel_mm=1.5)),
        mixing="balanced",
        augmentation=Augmentation(rotation=15, scale=(0.9, 1.1), shear=5, flip=True, gain=0.1, offset=0.1),
        optimizer="adamw",
        learning_rate=3e-3,
        weight_decay=0.01,
        schedule="one-cycle",
        epochs=60,
    )


def smoke() -> TrainingConfig:
    """A run that takes seconds and learns next to nothing."""
    return TrainingConfig(
        width=4,
        slices=SliceChoice(count=3, frame=Frame(shape=(64, 64), pixel_mm=4.0)),
        mixing="balanced",
        optimizer="adamw",
        learning_rate=5e-3,
        schedule="one-cycle",
        epochs=2,
    )


def demo() -> TrainingConfig:
    """Small enough that two runs, one of them with exact votes, take minutes."""
    return TrainingConfig(
        width=8,
        slices=SliceChoice(count=16, frame=Frame(shape=(96, 80), pixel_mm=2.0)),
        mixing="balanced",
        augmentation=Augmentation(rotation=15, scale=(0.9, 1.1), shear=5, flip=True, gain=0.1, offset=0.1),
        optimizer="adamw",
        learning_rate=5e-3,
        weight_decay=0.01,
        schedule="one-cycle",
        epochs=30,
    )


def desk() -> TrainingConfig:
    """`demo` with fewer epochs, for experiments of hundreds of runs on two cores."""
    return replace(demo(), epochs=12)


def glioma() -> TrainingConfig:
    """`desk` for 73 patients with glioma: square planes, and slices among which every patient's abnormality lies."""
    choice = SliceChoice(count=20, height=0.6, frame=Frame(shape=(96, 96), pixel_mm=2.0))
    return replace(desk(), slices=choice, epochs=6)


CONFIGS: dict[str, Callable[[], TrainingConfig]] = {
    function.__name__: function for function in (paper, standard, desk, glioma, demo, smoke)
}
"""The configs, by name."""


def config_named(name: str) -> TrainingConfig:
    """Return the config of this name.

    Raises:
        UserError: There is none.
    """
    check_choice("experiment", name, tuple(CONFIGS))
    return CONFIGS[name]()
