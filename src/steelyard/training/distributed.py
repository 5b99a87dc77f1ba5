"""Training on several ranks: one forward pass, one measurement."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from steelyard.measurement import Measurement, Scores
from steelyard.probing import Finding

Result = TypeVar("Result")


def run_once(model: nn.Module, function: Callable[[nn.Module], Result]) -> Result:
    """Apply a function that runs the model any number of times; to other ranks it is one forward pass.

    Ranks wait for each other in a forward pass of `DistributedDataParallel`, and would wait for ever if one of them ran
    more passes than another because it holds more domains.
    """
    if not isinstance(model, DistributedDataParallel):
        return function(model)
    one_pass = object.__new__(_OnePass)
    object.__setattr__(one_pass, "__dict__", vars(model))  # the same state: its reducer, its flags
    result: Result = one_pass(function)
    _keep_with_graph(one_pass, result)
    return result


def _keep_with_graph(one_pass: "_OnePass", result: object) -> None:
    """Keep a wrapper as long as the graph of what it has returned.

    The backward pass of a wrapper that looks for unused parameters, or whose graph is static, asks for the wrapper
    again, and has only a weak reference to it (torch 2.13, `_DDPSink`).
    """
    if isinstance(result, Tensor) and result.requires_grad:
        result.register_hook(partial(_leave_gradient, one_pass))  # type: ignore[no-untyped-call]
    elif isinstance(result, dict):
        for value in result.values():
            _keep_with_graph(one_pass, value)
    elif isinstance(result, tuple):
        for value in result:
            _keep_with_graph(one_pass, value)


def _leave_gradient(_: "_OnePass", __: Tensor) -> None:
    """A hook that changes no gradient."""


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


def on_any_rank(flag: bool, group: distributed.ProcessGroup | None, device: torch.device) -> bool:
    """Whether a flag is set on any rank; all ranks must ask."""
    if not is_shared(group):
        return flag
    return any(bool(row) for row in _gather_rows(torch.tensor([flag], dtype=torch.float64), group, device))


class Agreement(NamedTuple):
    """What the ranks agree on.

    Attributes:
        measurement: one measurement for all ranks; it holds no domain where there was nothing to compare.
        ranks_apart: whether the domains could not be compared because the ranks hold different ones.
    """

    measurement: Measurement
    ranks_apart: bool = False


class Agreed(NamedTuple):
    """What all ranks know after a vote.

    Attributes:
        finding: the same on every rank.
        ranks_apart: whether the domains could not be compared because the ranks hold different ones.
        cannot_share: whether a rank has found that gradients cannot be shared. All ranks then vote less often, because
            a rank that votes alone would wait for the others for ever.
    """

    finding: Finding
    ranks_apart: bool
    cannot_share: bool


def agree(
    finding: Finding,
    in_batch: Tensor,
    *,
    with_scores: bool,
    cannot_share: bool,
    group: distributed.ProcessGroup | None,
    device: torch.device,
) -> Agreed:
    """A finding that all ranks share.

    Args:
        finding: this rank's.
        in_batch: which domains this rank's batch holds, measured or not.
        with_scores: whether this vote yields scores, on the ranks that measured something.
        cannot_share: whether this rank has found that gradients cannot be shared.
        group: the ranks.
        device: where the model is.
    """
    agreement = average_over_ranks(finding.measurement, in_batch=in_batch, group=group, device=device)
    scores = finding.scores
    if with_scores:
        scores = average_scores(scores, len(in_batch), group=group, device=device)
    judged_by_batch = finding.scores is not None and not finding.held_out
    flags = torch.tensor([judged_by_batch, cannot_share], dtype=torch.float64)
    any_judged_by_batch, any_cannot_share = torch.stack(_gather_rows(flags, group, device)).any(0).tolist()
    agreed = replace(finding, measurement=agreement.measurement, scores=scores, held_out=not any_judged_by_batch)
    return Agreed(agreed, ranks_apart=agreement.ranks_apart, cannot_share=any_cannot_share)


def average_over_ranks(
    measurement: Measurement, *, in_batch: Tensor, group: distributed.ProcessGroup | None, device: torch.device
) -> Agreement:
    """One measurement from those of all ranks, computed alike and so bit-identical on every rank.

    Where all ranks measured the same domains it is the mean. Where they did not, a domain is not judged by which others
    it met: each value is taken as the sum of a rank's level and a domain's own part, fitted by least squares, and the
    mean level is added to the domains' parts. A rank that measured fewer than two domains compares nothing and is left
    out, and so is everything where the comparisons do not connect all domains.

    Args:
        measurement: this rank's.
        in_batch: which domains this rank's batch holds, measured or not.
        group: the ranks.
        device: where the model is.
    """
    table, present, in_batches = _gather(measurement, in_batch, group, device)
    nothing = Measurement.nothing(len(measurement.present))
    comparing = present.sum(1) >= 2
    table, present = table[comparing], present[comparing]
    if not comparing.any():
        # Two domains or more among all ranks, and no rank that holds two.
        apart = bool(in_batches.any(0).sum() >= 2 and (in_batches.sum(1) < 2).all())
        return Agreement(nothing, ranks_apart=apart)
    if not _connected(present):
        return Agreement(nothing, ranks_apart=True)
    if table.dim() > 2 or (present == present[0]).all() or not table[present].isfinite().all():
        together = present.any(0) if table.dim() == 2 else present.all(0)
        return Agreement(Measurement(table.mean(0), together))
    return Agreement(Measurement(_domain_values(table, present), present.any(0)))


def average_scores(
    scores: Scores | None, domains: int, *, group: distributed.ProcessGroup | None, device: torch.device
) -> Scores:
    """One table of scores from those of all ranks, computed alike on every rank.

    Each column is averaged as a measurement is: where ranks took steps for different domains, a score is taken as the
    sum of a rank's level and a step's own part. The step for a gradient of zero, which every rank took, connects them.

    Args:
        scores: this rank's; `None` if it measured nothing.
        domains: the number of domains.
        group: the ranks.
        device: where the model is.
    """
    table = torch.full((domains + 4, domains), torch.nan, dtype=torch.float64)
    if scores is not None:
        vectors = torch.stack([scores.before, scores.losses, scores.gradient_norms.square()])
        table = torch.cat([scores.after, vectors])
    tables = torch.stack(_gather_rows(table, group, device))
    columns = [_average_column(tables[:, : domains + 1, column]) for column in range(domains)]
    before, losses, square_norms = tables[:, domains + 1 :].nanmean(0)
    return Scores(after=torch.stack(columns, dim=1), before=before, losses=losses, gradient_norms=square_norms.sqrt())


def _average_column(table: Tensor) -> Tensor:
    """One domain's scores after each step, from those of all ranks; NaN where no rank measured one."""
    present = ~table.isnan()
    comparing = present.sum(1) >= 2
    table, present = table[comparing], present[comparing]
    if not comparing.any() or not _connected(present):
        return torch.full_like(table[:1].sum(0), torch.nan)
    if (present == present[0]).all():
        return table.mean(0)
    return torch.where(present.any(0), _domain_values(table, present), torch.nan)


def _gather_rows(table: Tensor, group: distributed.ProcessGroup | None, device: torch.device) -> list[Tensor]:
    """Every rank's tensor of one shape, on the CPU."""
    here = table.to(_meeting_device(group, device)).contiguous()
    tables = [torch.empty_like(here) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(tables, here, group=group)
    return [gathered.cpu() for gathered in tables]


def _gather(
    measurement: Measurement, in_batch: Tensor, group: distributed.ProcessGroup | None, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Every rank's values, measured domains and domains in the batch, one row each."""
    parts = [measurement.values.flatten(), measurement.present.double(), in_batch.double()]
    rows = torch.stack(_gather_rows(torch.cat(parts), group, device))
    sizes = [len(part) for part in parts]
    values, present, in_batches = rows.split_with_sizes(sizes, dim=1)
    return values.reshape(-1, *measurement.values.shape), present > 0, in_batches > 0


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
