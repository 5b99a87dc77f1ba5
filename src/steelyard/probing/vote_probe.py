"""Votes: probes of hypothetical losses, cast on the meta-train and meta-test halves of each domain's batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree, count_samples, join_samples, take_samples
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.optimizer_step import HypotheticalSteps, Rule
from steelyard.probing.passes import HalfTooSmallError
from steelyard.probing.probe import Finding, Losses, Probe
from steelyard.probing.replica import preserved_random_states
from steelyard.probing.sharing import Reuse, Reusing

Split = Literal["first", "random"]
MetaTest = Literal["eval", "batch"]


class Halves(NamedTuple):
    """One domain's samples, divided.

    Attributes:
        meta_train: the half that a hypothetical step is taken from.
        meta_test: the half that the step is judged by.
        sizes: the numbers of samples of both.
    """

    meta_train: Tree
    meta_test: Tree
    sizes: tuple[int, int]

    @property
    def share(self) -> float:
        """The meta-train half's share in all samples."""
        return self.sizes[0] / sum(self.sizes)

    @property
    def whole(self) -> Tree:
        """All samples, meta-train first."""
        return join_samples([self.meta_train, self.meta_test])


class Half(NamedTuple):
    """One half of one domain's samples, and its share in the domain's loss."""

    domain: str
    samples: Tree
    share: float


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
    def evaluating(self) -> bool:
        """Whether steps are judged in evaluation mode."""
        return self.meta_test == "eval"

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"


def _check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")


def halve(batch: Mapping[str, Tree], *, split: Split = "first", seed: int = 0) -> dict[str, Halves]:
    """Divide the batch of every domain that has at least two samples.

    m = ⌊min_d n_d / 2⌋ samples of each are meta-train, the rest meta-test.

    Args:
        batch: each domain's samples.
        split: which samples are meta-train: the `first` m, as in the authors' code, or m at `random`, as in the paper.
        seed: of a random split.
    """
    sizes: dict[str, int] = {}
    for name, samples in batch.items():
        size = count_samples(samples)
        if size >= 2:
            sizes[name] = size
    if not sizes:
        return {}
    m = min(sizes.values()) // 2
    generator = torch.Generator().manual_seed(seed)
    halves: dict[str, Halves] = {}
    for name, size in sizes.items():
        meta_train: slice | list[int] = slice(0, m)
        meta_test: slice | list[int] = slice(m, size)
        if split == "random":
            order = torch.randperm(size, generator=generator).tolist()
            meta_train, meta_test = order[:m], order[m:]
        samples = batch[name]
        halves[name] = Halves(take_samples(samples, meta_train), take_samples(samples, meta_test), (m, size - m))
    return halves


def meta_tests(halves: Mapping[str, Halves]) -> dict[str, Tree]:
    """The half of every domain that steps are judged by."""
    return {name: half.meta_test for name, half in halves.items()}


def in_order(halves: Mapping[str, Halves]) -> list[Half]:
    """All meta-train halves, then all meta-test halves."""
    trains = [Half(name, half.meta_train, half.share) for name, half in halves.items()]
    tests = [Half(name, half.meta_test, 1 - half.share) for name, half in halves.items()]
    return trains + tests
