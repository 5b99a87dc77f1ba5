"""Named configs to start from: each a function."""

from collections.abc import Callable
from dataclasses import replace

from steelyard.errors import UserError
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.slice_settings import Augmentation, SliceChoice
from steelyard.imaging.scans.frame import Frame


def paper() -> TrainingConfig:
    """The paper's every setting, for a GPU: U-Net of width 64, SGD, plateau schedule, random mixed batches."""
    return TrainingConfig(slices=SliceChoice(frame=Frame(shape=(256, 224))))


def standard() -> TrainingConfig:
    """For a network to use, trained on two cores: the paper's design on smaller planes, all slices, one-cycle AdamW."""
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
    """A run of seconds that learns next to nothing."""
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
    """Small enough that two runs, the inner loop's among them, take minutes."""
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
    """`demo` with fewer epochs: one of the hundreds of runs of an experiment on two cores."""
    return replace(demo(), epochs=12)


PROFILES: dict[str, Callable[[], TrainingConfig]] = {
    function.__name__: function for function in (paper, standard, desk, demo, smoke)
}
"""By name."""


def profile_named(name: str) -> TrainingConfig:
    """Return a profile, or say which there are."""
    if name not in PROFILES:
        raise UserError(f"experiment must be one of {', '.join(PROFILES)}; got {name}.")
    return PROFILES[name]()
