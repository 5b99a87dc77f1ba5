"""What the balancer itself counts and learns, put back where a call fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from steelyard.probing import Probe
from steelyard.weighting import Weighting


@contextmanager
def restored_on_error(
    outcomes: Tensor, weighting: Weighting, probe: Probe | None, *, unless: Callable[[], bool]
) -> Iterator[None]:
    """Undo what a call has counted and learned, if the call raises: it then never happened.

    What a probe has learned about the model, such as that gradients cannot be shared, stays true and is not undone.

    Args:
        outcomes: the balancer's own counters.
        weighting: its votes and weights.
        probe: its number of steps, and the samples it has gathered.
        unless: whether nothing may be undone any more: other ranks have cast the same vote, and keep it.
    """
    tensors = [outcomes, *_state_tensors(weighting)]
    if probe is not None:
        tensors.append(probe.steps)
    gathering = None if probe is None else probe.gathering
    tensor_copies = [tensor.clone() for tensor in tensors]
    gathered = None if gathering is None else dict(gathering.kept)
    try:
        yield
    except BaseException:
        if unless():
            raise
        with torch.no_grad():
            for tensor, tensor_copy in zip(tensors, tensor_copies, strict=True):
                tensor.copy_(tensor_copy)
        if gathering is not None and gathered is not None:
            gathering.kept = gathered
        raise


def _state_tensors(module: nn.Module) -> list[Tensor]:
    """Buffers and parameters: all that a weighting changes."""
    return [*module.buffers(), *(parameter.detach() for parameter in module.parameters())]
