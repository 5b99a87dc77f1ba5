"""Networks by name."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.imaging.networks.paper import Lightweight, UNet

NAMES: dict[str, Callable[..., nn.Module]] = {"unet": UNet, "lightweight": Lightweight}
"""The networks that need no import path."""

MOST_NUMBERS = 250_000_000
"""Weights of a network; the paper's U-Net has 15 million. More is a slip, and gigabytes."""

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
        UserError: There is no such network, it does not take the options, or it is too large.
    """
    if model in NAMES:
        sizes = describe_network(model, width=width, options=options)
        count = sum(tensor.numel() for tensor in sizes.values())
        if count > MOST_NUMBERS:
            raise UserError(f"model {model}: has {count} weights with width {width}; {MOST_NUMBERS} are the most.")
        own: nn.Module = _made(model, NAMES[model], _own_settings(model, width, options))
        return own
    make = _imported(model)
    settings = dict(options or {})
    if model.startswith("monai:"):
        arguments = inspect.signature(make).parameters
        settings = {key: value for key, value in _SLICES.items() if key in arguments} | settings
    network = _made(model, make, settings)
    if not isinstance(network, nn.Module):
        raise UserError(f"model {model}: must return an nn.Module; got {type(network).__name__}.")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"model {model}: has no parameters to train.")
    return network


def describe_network(model: str, *, width: int, options: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """Return the names and sizes of the weights of a network of ours, as tensors that take no memory.

    Raises:
        UserError: It does not take the options.
    """
    with torch.device("meta"):
        network: nn.Module = _made(model, NAMES[model], _own_settings(model, width, options))
    return network.state_dict()


def _own_settings(model: str, width: int, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a network of ours."""
    if "width" in (options or {}):
        raise UserError(f"model {model}: width is a setting of its own, not one of the options.")
    return {"width": width} | dict(options or {})


def _made(model: str, make: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    try:
        return make(**settings)
    except Exception as error:  # whatever a constructor raises, it is about its options
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"model {model}: {reason}") from error


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
