"""Networks by name or import path."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.files.checks import did_you_mean
from steelyard.imaging.networks.paper import Lightweight, UNet

NAMES: dict[str, Callable[..., nn.Module]] = {"unet": UNet, "lightweight": Lightweight}
"""The networks that need no import path."""

MOST_NUMBERS = 250_000_000
"""The largest number of weights of a network; the paper's U-Net has 15 million. More is a mistake, and gigabytes."""

_MONAI_ARGUMENTS = {"spatial_dims": 2, "in_channels": 1, "out_channels": 1}  # slices of one channel to one logit


def is_code(model: str) -> bool:
    """Whether a name would have a module imported: such a name must come from the user, never from a file."""
    return model not in NAMES


def build_network(model: str, *, width: int = 64, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Return a fresh network from one channel to one logit per pixel.

    Args:
        model: `unet` or `lightweight`; `monai:BasicUNet`, or any class of monai.networks.nets, which is told that it
            gets slices of one channel; or `package.module:callable`, which is called with the options alone.
        width: Features at the first level of `unet` and `lightweight`.
        options: Further keyword arguments.

    Raises:
        UserError: There is no such network, it does not take the options, or it is too large.
    """
    if model in NAMES:
        return _build_own(model, width, options)
    make = _import(model)
    arguments = dict(options or {})
    if model.startswith("monai:"):
        accepted = inspect.signature(make).parameters
        for name, value in _MONAI_ARGUMENTS.items():
            if name in accepted:
                arguments.setdefault(name, value)
    network = _call(model, make, arguments)
    if not isinstance(network, nn.Module):
        raise UserError(f"model {model}: must return an nn.Module; got {type(network).__name__}.")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"model {model}: has no parameters to train.")
    return network


def describe_network(model: str, *, width: int, options: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """Return the names and sizes of the weights of a built-in network, as tensors that take no memory.

    Raises:
        UserError: It does not take the options.
    """
    with torch.device("meta"):
        network: nn.Module = _call(model, NAMES[model], _own_arguments(model, width, options))
    return network.state_dict()


def _build_own(model: str, width: int, options: Mapping[str, Any] | None) -> nn.Module:
    """Build a network of `NAMES`, unless it is too large."""
    tensors = describe_network(model, width=width, options=options).values()
    count = sum(tensor.numel() for tensor in tensors)
    if count > MOST_NUMBERS:
        raise UserError(f"model {model}: has {count} weights with width {width}; {MOST_NUMBERS} are the most.")
    network: nn.Module = _call(model, NAMES[model], _own_arguments(model, width, options))
    return network


def _own_arguments(model: str, width: int, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a built-in network."""
    arguments = dict(options or {})
    if "width" in arguments:
        raise UserError(f"model {model}: width is a setting of its own, not one of the options.")
    return {"width": width, **arguments}


def _call(model: str, make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a constructor; whatever it raises is about its arguments, and becomes one line."""
    _check_options(model, make, arguments)
    try:
        return make(**arguments)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"model {model}: {lines[0]}") from error


def _check_options(model: str, make: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse options that a constructor does not take, and name those that it needs."""
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # written in C: the call itself will tell
        return
    _refuse_unknown(model, arguments, parameters)
    free = [parameter for name, parameter in parameters.items() if name not in arguments]
    needed = [parameter.name for parameter in free if _is_needed(parameter)]
    if needed:
        settings = " ".join(f"options.{name}=VALUE" for name in needed)
        raise UserError(f"model {model}: needs {' and '.join(needed)}; add --set {settings}.")


def _refuse_unknown(model: str, arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    """Refuse options that are no parameters, unless any are taken."""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    free = [name for name in parameters if name not in arguments]
    for name in arguments:
        if name not in parameters:
            raise UserError(f"model {model}: has no option {name}.{did_you_mean(name, free)}")


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Whether a call must name a parameter."""
    has_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return has_name and parameter.default is parameter.empty


def _import(model: str) -> Callable[..., Any]:
    """Return the callable that `package.module:callable` or `monai:CLASS` names."""
    module, colon, name = model.partition(":")
    if not colon or not module or not name:
        raise UserError(
            f"model must be {', '.join(NAMES)}, monai:CLASS or package.module:callable; got {model!r}."
            f"{did_you_mean(model, NAMES)}"
        )
    if module == "monai":
        module = "monai.networks.nets"
    try:
        imported = import_module(module)
    except ImportError as error:
        raise UserError(f"model {model}: {module} cannot be imported, {error}; is its folder in PYTHONPATH?") from error
    if not hasattr(imported, name):
        raise UserError(f"model {model}: {module} has no {name}.{did_you_mean(name, dir(imported))}")
    make: Callable[..., Any] = getattr(imported, name)
    return make
