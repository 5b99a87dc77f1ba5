"""What a network runs on: the CPU, or an accelerator that this machine has."""

from typing import Literal, get_args

from steelyard.errors import UserError
from steelyard.files.checks import check_choice

Accelerator = Literal["auto", "cpu", "cuda", "mps"]
"""What users may name; `auto` leaves the choice to steelyard."""


def choose_accelerator(name: str, *, devices: int = 1) -> str:
    """Return the kind of device that a name stands for.

    `auto` is `cuda` if this machine has enough CUDA devices, and `cpu` otherwise. It is never `mps`: votes are computed
    in float64, which MPS lacks.

    Args:
        name: One of `Accelerator`.
        devices: How many of them are needed.

    Raises:
        UserError: There is no such accelerator, or this machine has too few.

    >>> choose_accelerator("cpu", devices=2)
    'cpu'
    """
    import torch  # here, because the command line imports `Accelerator` and its help should not wait for torch

    check_choice("accelerator", name, get_args(Accelerator))
    present = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if name == "auto":
        return "cuda" if present["cuda"] >= devices else "cpu"
    if name != "cpu" and present[name] < devices:
        raise UserError(
            f"accelerator {name}: {devices} needed, and this machine has {present[name]}; "
            "with --accelerator cpu it runs on the CPU."
        )
    return name
