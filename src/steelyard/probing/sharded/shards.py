"""Parameters that are sharded over ranks: sums over shards, and what the ranks can measure together."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from steelyard.batches import Tree, count_samples
from steelyard.probing.sharded.fsdp_state import reshard, shards_of

if TYPE_CHECKING:  # their import takes long, and only sharded models need them
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


@final
class Ranks:
    """The ranks that hold a sharded model.

    Args:
        model: the live model.
    """

    def __init__(self, model: nn.Module) -> None:
        shards = shards_of(model)
        if not shards:
            raise ValueError("fully_shard was applied to modules without parameters: apply it to the model itself.")
        self._mesh: DeviceMesh = shards[0].device_mesh
        self._divided = _divided_dimensions(shards[0])
        for shard in shards:
            if shard.device_mesh != self._mesh or _divided_dimensions(shard) != self._divided:
                raise ValueError(
                    "all parameters must be sharded over the same dimensions of one mesh; tensor parallelism and "
                    "several meshes cannot be measured: pass probe=None and sy.Fixed(…)."
                )

    def sum_over_shards(self, table: Tensor) -> Tensor:
        """Σ over the shards of one copy of the model, float64 on the CPU; the same on every rank."""
        return self._reduce(table, distributed.ReduceOp.SUM, self._divided)

    def mean(self, table: Tensor) -> Tensor:
        """The mean over all ranks, float64 on the CPU."""
        return self._reduce(table, distributed.ReduceOp.SUM, [True] * self._mesh.ndim) / self._mesh.size()

    def least(self, table: Tensor) -> Tensor:
        """The smallest values on any rank."""
        return self._reduce(table, distributed.ReduceOp.MIN, [True] * self._mesh.ndim)

    def all_agree(self, here: bool) -> bool:
        """Whether something is true on every rank."""
        return bool(self.least(torch.tensor([float(here)])) > 0)

    def _reduce(self, table: Tensor, operation: "distributed.ReduceOp.RedOpType", dimensions: Sequence[bool]) -> Tensor:
        """Reduce a tensor over some dimensions of the mesh."""
        result = table.detach().to(self._mesh.device_type, torch.float64, copy=True)
        for dimension, is_reduced in enumerate(dimensions):
            if is_reduced:
                distributed.all_reduce(result, operation, group=self._mesh.get_group(dimension))
        return result.cpu()


def _divided_dimensions(shard: "DTensor") -> list[bool]:
    """For each dimension of the mesh whether the parameter is divided along it; otherwise ranks hold copies."""
    return [placement.is_shard() for placement in shard.placements]


def stepped_shards(model: nn.Module, optimizer: Optimizer) -> list["DTensor"]:
    """The trainable parameters of a sharded model that the optimizer steps.

    Raises:
        ValueError: A parameter is not sharded, or a hook runs whenever its gradient is ready.
    """
    from torch.distributed.tensor import DTensor

    reshard(model)
    in_model = set(model.parameters())
    shards: list[DTensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            if not isinstance(parameter, DTensor):
                raise ValueError(
                    f"the optimizer steps a parameter of shape {tuple(parameter.shape)} that is not sharded, and whose "
                    "gradient nobody averages over the ranks: apply fully_shard to the whole model, too."
                )
            if parameter._post_accumulate_grad_hooks:  # a private name of torch 2.13
                raise ValueError(
                    "a parameter has a hook that runs when its gradient is ready, which a vote would set off: "
                    "remove the hook, or pass probe=None and sy.Fixed(…)."
                )
            if parameter in in_model:
                shards.append(parameter)
    if not shards:
        raise ValueError("the optimizer holds no trainable parameter of the model it is given with.")
    return shards


class CommonSamples(NamedTuple):
    """The samples of the domains that all ranks can measure.

    Attributes:
        batch: this rank's samples.
        held_out: this rank's held-out samples; empty if there are none.
        fewest: the smallest number of samples of any of these domains on any rank.
    """

    batch: dict[str, Tree]
    held_out: dict[str, Tree]
    fewest: int


def common_samples(
    model: nn.Module, domains: Sequence[str], batch: Mapping[str, Tree], held_out: Mapping[str, Tree] | None = None
) -> CommonSamples:
    """Leave out every domain that some rank has too few samples of, because all ranks run the same passes.

    Of the batch it takes two samples, of held-out samples one.
    """
    counts = [_counts(batch, domains), _counts(held_out or {}, domains)]
    judged_apart = float(held_out is not None)
    # The least of −x is the largest x.
    least = Ranks(model).least(torch.tensor([*counts[0], *counts[1], judged_apart, -judged_apart]))
    if least[-2] != -least[-1]:
        raise ValueError("held_out must be passed on all ranks that share a sharded model, or on none.")
    sizes, held_out_sizes = least[:-2].view(2, -1).tolist()
    measured = _names_with(2, domains, sizes)
    judging = _names_with(1, domains, held_out_sizes)
    return CommonSamples(
        batch={domain: batch[domain] for domain in measured},
        held_out={domain: (held_out or {})[domain] for domain in judging},
        fewest=int(min([size for size in sizes if size >= 2], default=0)),
    )


def _names_with(fewest: int, domains: Sequence[str], sizes: Sequence[float]) -> list[str]:
    """The domains with at least so many samples."""
    return [domain for domain, size in zip(domains, sizes, strict=True) if size >= fewest]


def _counts(batch: Mapping[str, Tree], domains: Sequence[str]) -> list[float]:
    return [float(count_samples(batch[domain])) if domain in batch else 0.0 for domain in domains]
