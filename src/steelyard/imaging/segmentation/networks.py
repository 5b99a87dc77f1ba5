"""Networks by name."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import nn

from steelyard.errors import UserError
from steelyard.imaging.lightweight import Lightweight
from steelyard.imaging.unet import UNet

NAMES: dict[str, Callable[..., nn.Module]] = {"unet": UNet, "lightweight": Lightweight}
"""The networks that need no import path."""

_SLICES = {"spatial_dims": 2, "in_channels": 1, "out_channels": 1}


def is_code(model: str) -> bool:
    """Whether a name would have a module imported: such a name must come from the user, never from a file."""
    return model not in NAMES


def build_network(model: str, *, width: int = 64, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Return a fresh network from one channel to one logit per pixel.

    Args:
        model: `unet`, `lightweight`, `monai:BasicUNet` (any class of monai.networks.nets, which is told that it gets
            slices of one channel), or `package.module:callable`, which is called with the options alone.
        width: Features at the first level of `unet` and `lightweight`.
        options: Further keyword arguments.

    Raises:
        UserError: There is no such network, or it does not take the options.
    """
    try:
        if model in NAMES:
            return NAMES[model](width=width, **(options or {}))
        make = _imported(model)
        known = inspect.signature(make).parameters if model.startswith("monai:") else {}
        network = make(**({key: value for key, value in _SLICES.items() if key in known} | dict(options or {})))
    except (TypeError, ValueError) as error:
        raise UserError(f"model {model}: {error}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"model {model}: must return an nn.Module; got {type(network).__name__}.")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"model {model}: has no parameters to train.")
    return network


def _imported(model: str) -> Callable[..., Any]:
    place, colon, name = model.partition(":")
    if not colon or not place or not name:
        raise UserError(f"model must be {', '.join(NAMES)}, monai:CLASS or package.module:callable; got {model!r}.")
    place = "monai.networks.nets" if place == "monai" else place
    try:
        return getattr(import_module(place), name)  # type: ignore[no-any-return]
    except ImportError as error:
        raise UserError(f"model {model}: {place} cannot be imported, {error}; is its folder in PYTHONPATH?") from error
    except AttributeError:
        raise UserError(f"model {model}: {place} has no {name}.") from None
