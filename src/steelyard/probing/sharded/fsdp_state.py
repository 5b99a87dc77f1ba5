"""What `fully_shard` keeps outside the modules.

Private names of torch, as seen in torch 2.13; tests fail where they change.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def reshard(model: nn.Module) -> None:
    """Register the shards with the modules again; after a pass some hold whole parameters."""
    for module in _sharded_modules(model):
        module.reshard()


def shards_of(model: nn.Module) -> list[Any]:
    """The shards of all parameters, whether they are registered with the modules now or not."""
    groups = [group for state in _states(model) for group in state._fsdp_param_groups]
    return [parameter.sharded_param for group in groups for parameter in group.fsdp_params]


@contextmanager
def gradients_reduced(model: nn.Module) -> Iterator[None]:
    """Within it, backward passes leave reduced gradients in the shards, also in the middle of an accumulated step.

    Gradients that such a step has not reduced yet are put aside, and are back afterwards. Where a pass fails, the model
    can be used again.
    """
    if not all(hasattr(module, "reset_iter_state") for module in _sharded_modules(model)):
        raise RuntimeError(
            "a sharded model can be measured with torch 2.13 or newer: upgrade torch, or pass probe=None."
        )
    states = _states(model)
    settings = [_take_settings(state) for state in states]
    try:
        yield
    except BaseException:
        _end_passes(model)
        raise
    finally:
        for holder, values in itertools.chain(*settings):
            for name, value in values.items():
                setattr(holder, name, value)


def _end_passes(model: nn.Module) -> None:
    """Make a model usable in which a pass has failed."""
    for module in _sharded_modules(model):
        if module._get_fsdp_state()._is_root:
            module.reset_iter_state()


def _take_settings(state: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Set one state so that the next backward pass reduces; return each changed object and the values it had."""
    context = state._state_ctx
    taken: list[tuple[Any, dict[str, Any]]] = [(context, {"is_last_backward": context.is_last_backward})]
    context.is_last_backward = True  # which waits for the reductions on a GPU
    for group in state._fsdp_param_groups:
        names = ("reduce_grads", "all_reduce_grads", "_partial_reduce_output")
        taken.append((group, {name: getattr(group, name) for name in names}))
        group.reduce_grads = group.all_reduce_grads = True
        group._partial_reduce_output = None
        for parameter in group.fsdp_params:
            taken.append((parameter, {"unsharded_accumulated_grad": parameter.unsharded_accumulated_grad}))
            parameter.unsharded_accumulated_grad = None
            whole = getattr(parameter, "_unsharded_param", None)  # which is made in the first forward pass
            if whole is not None:
                taken.append((whole, {"grad": whole.grad}))
                whole.grad = None
    return taken


def _sharded_modules(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _states(model: nn.Module) -> list[Any]:
    """The states of the modules; several modules may have one."""
    return list({id(state): state for state in (m._get_fsdp_state() for m in _sharded_modules(model))}.values())
