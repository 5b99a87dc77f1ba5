"""Which probe suits a model: the cheapest that measures the step and nothing else."""

from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steelyard.measurement import Statistic
from steelyard.probing import FirstOrder, Gramian, InnerLoop, Losses, Probe
from steelyard.probing.optimizer_step import check_can_be_followed, innermost
from steelyard.probing.replica import is_sharded
from steelyard.probing.sharded.votes import check_can_step_shards
from steelyard.probing.sharing import CannotShareError, check_can_be_verified, check_modules, check_precision
from steelyard.training.arguments import as_bytes, from_bytes

_WARM_UP = 100  # votes on each of the first steps, where later only each n-th step is measured
_MANY_DOMAINS = 4
_PROBES: dict[str, type[Probe]] = {"FirstOrder": FirstOrder, "Gramian": Gramian, "InnerLoop": InnerLoop}


class Choice(NamedTuple):
    """A probe to be made, and why it was chosen; plain values, so that a checkpoint can hold it.

    Attributes:
        kind: the name of the class.
        arguments: of its constructor.
        reason: why, in words.
    """

    kind: str
    arguments: dict[str, Any]
    reason: str

    def make(self) -> Probe:
        """The probe."""
        return _PROBES[self.kind](**self.arguments)


def choose_probe(
    statistic: Statistic, model: nn.Module, losses: Losses, optimizer: Optimizer, *, held_out: bool = False
) -> Choice:
    """Choose the probe for a weighting that needs this statistic, so that votes add about an eighth to a plain step.

    A first-order vote costs next to nothing where its gradients serve the outer step too. Where they cannot, a vote is
    cast on each n-th step only, after a warm-up. A judge of the user's own may have no gradient, so it is judged
    exactly. With batch normalisation exact votes are the cheaper ones.
    """
    if statistic is Statistic.GRAMIAN:
        return Choice("Gramian", {}, "the weighting needs gradients alone")
    step = "optimizer"
    try:
        check_can_be_followed(innermost(optimizer))
    except TypeError:
        step = "sgd"
    if is_sharded(model):
        return _sharded_votes(len(losses.domains), innermost(optimizer))
    # Without shared gradients the cost of a vote grows with the number of domains.
    at_least = 2 * len(losses.domains)
    if any(_is_batch_norm(module) for module in model.modules()):
        return _exact_votes(step, max(10, at_least), "with batch normalisation exact votes cost least")
    if losses.have_judge:
        return _exact_votes(step, max(6, at_least), "a judge of one's own need not have a gradient")
    obstacle = _obstacle(model, losses)
    if obstacle:
        return _first_order_votes(step, max(8, at_least), f"{obstacle}, so a vote takes extra passes")
    if held_out:
        return _first_order_votes(step, 4, "held-out samples take passes of their own")
    if len(losses.domains) > _MANY_DOMAINS:
        return _first_order_votes(step, 4, "a vote uses the outer step's gradients, but has many domains to compare")
    return Choice("FirstOrder", {"step": step}, "a vote uses the outer step's gradients, and so is cast on every step")


@final
class AutoProbe(nn.Module):
    """Remembers which probe was chosen, so that a checkpoint brings it back.

    Args:
        automatic: whether the probe is chosen at all; otherwise the user has named one, or none is needed.
    """

    choice: Tensor
    """What was chosen, as JSON; empty until then."""

    def __init__(self, *, automatic: bool) -> None:
        super().__init__()
        self.automatic = automatic
        self.register_buffer("choice", torch.zeros(0, dtype=torch.uint8))

    def make(self, choice: Choice) -> Probe:
        """The chosen probe; the choice is remembered."""
        self._remember(choice)
        return choice.make().to(self.choice.device)

    def make_saved(self, choice: Tensor) -> Probe | None:
        """The probe of a checkpoint; `None` if none had been chosen when it was saved."""
        self.choice = torch.zeros_like(choice, device=self.choice.device)  # loading fills it, and needs its size
        if not len(choice):
            return None
        return self.make(Choice(*from_bytes(choice)))

    def cannot_share(self, probe: Probe | None, domains: int) -> bool:
        """Whether frequent votes were chosen, and their gradients turn out not to be shared."""
        if not self.automatic or not isinstance(probe, FirstOrder) or probe.every >= _rare(domains):
            return False
        return bool(probe.reuse.refused)

    def vote_less_often(self, probe: Probe | None, domains: int) -> None:
        """Go on with a vote every so often. Ranks do it together, and remember it in the same words."""
        assert isinstance(probe, FirstOrder)  # noqa: S101
        reason = "gradients cannot be shared (probe.reuse.reason says why), so a vote takes extra passes"
        choice = _first_order_votes(probe.step, _rare(domains), reason)
        probe.every, probe.warm_up = choice.arguments["every"], choice.arguments["warm_up"]
        probe.reuse.refused.fill_(True)
        self._remember(choice)

    def _remember(self, choice: Choice) -> None:
        self.choice = as_bytes(choice).to(self.choice.device)

    @property
    def description(self) -> str:
        """What was chosen, and why, for `print(balancer)`; empty if nothing is chosen."""
        if not self.automatic:
            return ""
        if not len(self.choice):
            return "probe='auto', to be chosen at the first call"
        kind, _, reason = from_bytes(self.choice)
        return f"probe='auto': {kind}, because {reason}"


def _exact_votes(step: str, every: int, reason: str) -> Choice:
    arguments = {"step": step, "meta_test": "step", "every": every, "warm_up": _WARM_UP, "reuse": "detect"}
    return Choice("InnerLoop", arguments, f"{reason}; every {every} steps, because a vote takes extra passes")


def _rare(domains: int) -> int:
    """The interval of votes that take extra passes; without shared gradients these grow with the domains."""
    return max(8, 2 * domains)


def _first_order_votes(step: str, every: int, reason: str) -> Choice:
    return Choice("FirstOrder", {"step": step, "every": every, "warm_up": _WARM_UP}, f"{reason}; every {every} steps")


def _sharded_votes(domains: int, optimizer: Optimizer) -> Choice:
    """First-order votes, because a sharded model cannot be copied."""
    step, reason = "optimizer", "the model is sharded over ranks, so a vote takes extra passes"
    try:
        check_can_step_shards(optimizer)
    except TypeError:
        step = "sgd"
        reason += f" and takes plain gradient steps, because {type(optimizer).__name__} may need whole parameters"
    return _first_order_votes(step, _rare(domains), reason)


def _obstacle(model: nn.Module, losses: Losses) -> str:
    """Why the gradients of a vote cannot serve the outer step; empty if nothing speaks against it."""
    try:
        check_modules(model)
        check_precision(model)
        check_can_be_verified(model, losses)
    except CannotShareError as error:
        return str(error)
    return ""


def _is_batch_norm(module: nn.Module) -> bool:
    """Whether a module is batch normalisation in training mode."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
