"""Training on several ranks: one forward pass, one measurement."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from steelyard.measurement import Measurement

Result = TypeVar("Result")


def run_once(model: nn.Module, function: Callable[[nn.Module], Result]) -> Result:
    """Apply a function that runs the model any number of times; to other ranks it is one forward pass.

    Ranks wait for each other in a forward pass of `DistributedDataParallel`, and would wait for ever if one of them ran
    more passes than another because it holds more domains.
    """
    if not isinstance(model, DistributedDataParallel):
        return function(model)
    once = object.__new__(_OnePass)
    object.__setattr__(once, "__dict__", vars(model))  # the same state: its reducer, its flags
    result: Result = once(function)
    return result


class _OnePass(DistributedDataParallel):
    """A wrapper's forward pass around a function of the wrapped module, in place of the module's own."""

    @property
    def module(self) -> "_Applied":
        return _Applied(self._modules["module"])


class _Applied:
    """A module that is called with a function of it."""

    def __init__(self, wrapped: nn.Module | None) -> None:
        self._wrapped: Any = wrapped

    def __call__(self, function: Callable[[nn.Module], Result]) -> Result:
        return function(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def is_shared(group: distributed.ProcessGroup | None) -> bool:
    """Whether other ranks train along."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size(group) > 1


def average_over_ranks(
    measurement: Measurement, *, group: distributed.ProcessGroup | None, device: torch.device
) -> Measurement:
    """One measurement from those of all ranks, computed alike and so bit-identical on every rank.

    Where all ranks measured the same domains it is the mean. Where they did not, a domain is not judged by which others
    it met: each value is taken as the sum of a rank's level and a domain's own part, fitted by least squares, and the
    mean level is added to the domains' parts. A rank that measured fewer than two domains compares nothing and is left
    out, and so is everything where the comparisons do not connect all domains.
    """
    table, present = _gather(measurement, group, device)
    comparing = present.sum(1) >= 2
    table, present = table[comparing], present[comparing]
    if not comparing.any() or not _connected(present):
        return Measurement.nothing(len(measurement.present))
    if table.dim() > 2 or (present == present[0]).all() or not table[present].isfinite().all():
        together = present.any(0) if table.dim() == 2 else present.all(0)
        return Measurement(table.mean(0), together)
    return Measurement(_domain_values(table, present), present.any(0))


def _gather(
    measurement: Measurement, group: distributed.ProcessGroup | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Every rank's values and presence, one row each."""
    row = torch.cat([measurement.values.flatten(), measurement.present.double()]).to(_meeting_device(group, device))
    rows = [torch.empty_like(row) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(rows, row, group=group)
    table = torch.stack(rows).cpu()
    domains = len(measurement.present)
    return table[:, :-domains].reshape(-1, *measurement.values.shape), table[:, -domains:] > 0


def _meeting_device(group: distributed.ProcessGroup | None, device: torch.device) -> torch.device:
    """Where ranks exchange small tensors: in main memory if their backend can, else where the model is."""
    backend = distributed.get_backend(group)
    return torch.device("cpu") if "gloo" in backend or "mpi" in backend else device


def _connected(present: Tensor) -> bool:
    """Whether comparisons within ranks lead from every measured domain to every other."""
    meets = present.double().T @ present.double()
    reached = torch.linalg.matrix_power(meets, len(meets))[present.any(0)][:, present.any(0)]
    return bool((reached > 0).all())


def _domain_values(table: Tensor, present: Tensor) -> Tensor:
    """Least squares for value = level of the rank + part of the domain."""
    ranks, domains = present.nonzero(as_tuple=True)
    design = torch.zeros(len(ranks), sum(present.shape), dtype=torch.float64)
    rows = torch.arange(len(ranks))
    design[rows, ranks] = 1
    design[rows, present.shape[0] + domains] = 1
    fitted: Tensor = torch.linalg.pinv(design) @ table[ranks, domains]
    return fitted[: present.shape[0]].mean() + fitted[present.shape[0] :]
