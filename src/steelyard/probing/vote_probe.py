"""What the probes of hypothetical losses have in common: their settings, the halves, and the checks before sharing."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.audit import audit, check_loss_is_mean
from steelyard.probing.halves import Halves, Split, halve
from steelyard.probing.optimizer_step import HypotheticalSteps, Rule
from steelyard.probing.passes import HalfTooSmallError
from steelyard.probing.probe import Finding, Losses, Probe
from steelyard.probing.replica import preserved_random_states
from steelyard.probing.sharing import Reuse, Reusing

MetaTest = Literal["eval", "batch"]


class Vote(NamedTuple):
    """What a vote is cast on: the live model and losses, the halves, the steps, and the batch that was halved."""

    model: nn.Module
    losses: Losses
    halves: dict[str, Halves]
    steps: HypotheticalSteps
    batch: Mapping[str, Tree]


class VoteProbe(Probe, ABC):
    """Hypothetical losses H_d, from the halves of each domain's batch; `InnerLoop` documents the arguments."""

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest = "eval",
        split: Split = "first",
        every: int = 1,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
        reuse: Reusing = False,
    ) -> None:
        super().__init__(every=every, gather=gather)
        _check_choice("step", step, get_args(Rule))
        _check_choice("meta_test", meta_test, get_args(MetaTest))
        _check_choice("split", split, get_args(Split))
        if gather and reuse is True:
            raise ValueError("reuse=True needs votes cast on the outer step's own samples; with gather they are not.")
        self.step = step
        self.meta_test = meta_test
        self.split = split
        self.scaler = scaler
        self.reuse = Reuse(False if gather else reuse)

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        halves = halve(batch, split=self.split, seed=int(self.steps))
        if len(halves) < 2:
            return Measurement.nothing(len(losses.domains))
        vote = Vote(model, losses, halves, HypotheticalSteps(optimizer, self.step), batch)
        try:
            with preserved_random_states(model.parameters()):
                return self._cast(vote)
        except HalfTooSmallError:
            return Measurement.nothing(len(losses.domains))

    @abstractmethod
    def _cast(self, vote: Vote) -> Measurement | Finding:
        """The hypothetical losses; random numbers may be drawn."""

    @property
    def _evaluating(self) -> bool:
        """Whether steps are judged in evaluation mode."""
        return self.meta_test == "eval"

    def _check_halves(self, vote: Vote, train_outputs: Mapping[str, Tree], test_outputs: Mapping[str, Tree]) -> None:
        """Refuse to share where the outer loss is not the mean of the halves' losses; an objective has no outputs."""
        if train_outputs:
            check_loss_is_mean(vote.losses, vote.halves, train_outputs, test_outputs)
        if self.reuse.needs_audit(vote.model, self.vote_number):
            parts = {name: half[:2] for name, half in vote.halves.items()}
            audit(vote.model, vote.losses, parts, scaler=self.scaler, reuse=self.reuse, evaluating=self._evaluating)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"


def _check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")
