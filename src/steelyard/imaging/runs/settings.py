"""Settings as a user writes them: NAME=VALUE."""

from collections.abc import Sequence
from typing import Any

from steelyard.errors import UserError
from steelyard.files.checks import brief
from steelyard.files.records import parse_json
from steelyard.imaging.runs.config import TrainingConfig


def with_settings(config: TrainingConfig, settings: Sequence[str]) -> TrainingConfig:
    """Return a config with some settings changed.

    Args:
        config: Where to start from.
        settings: Each as NAME=VALUE, such as `learning_rate=0.001` or `slices.frame.pixel_mm=1.2`.

    Raises:
        UserError: There is no such setting, or the value is impossible.

    >>> with_settings(TrainingConfig(), ["epochs=3"]).epochs
    3
    """
    held = config.as_dict()
    for setting in settings:
        _put(held, setting)
    return TrainingConfig.from_dict(held)


def _put(held: dict[str, Any], setting: str) -> None:
    """Put NAME=VALUE into a config's dict; the value is JSON, or text."""
    name, equals, text = setting.partition("=")
    *path, last = name.split(".")
    settings: Any = held
    for step in path:
        settings = settings.get(step) if isinstance(settings, dict) else None
    if not equals or not isinstance(settings, dict) or (last not in settings and path != ["options"]):
        raise UserError(f"--set takes NAME=VALUE with the name of a setting; got {brief(setting)}.")
    try:
        settings[last] = parse_json(text)
    except ValueError:
        settings[last] = text
