"""Votes: probes of hypothetical losses, cast on the meta-train and meta-test halves of each domain's batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree, count_samples, take_samples
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.optimizer_step import HypotheticalSteps, Rule
from steelyard.probing.passes import HalfTooSmallError
from steelyard.probing.probe import Finding, Losses, Probe
from steelyard.probing.replica import is_sharded, preserved_random_states
from steelyard.probing.sharded.shards import common_samples
from steelyard.probing.sharing import Reuse, Reusing

Split = Literal["first", "random"]
MetaTest = Literal["eval", "batch", "step"]

# A vote that needs no scores yields them every so often, for the audit.
_SCORES_EVERY = 16


class Half(NamedTuple):
    """Some of one domain's samples, and their share in the domain's loss on the whole batch."""

    domain: str
    samples: Tree
    share: float


class Halves(NamedTuple):
    """The samples of a vote.

    Attributes:
        meta_train: for each domain the samples that its hypothetical step is taken from.
        meta_test: for each domain the samples that all steps are judged by.
        held_out: whether the meta-test samples are not part of the batch.
    """

    meta_train: list[Half]
    meta_test: list[Half]
    held_out: bool = False

    @property
    def names(self) -> list[str]:
        """The domains that a step is taken for."""
        return [half.domain for half in self.meta_train]

    @property
    def trains(self) -> dict[str, Tree]:
        """The samples that steps are taken from."""
        return {half.domain: half.samples for half in self.meta_train}

    @property
    def tests(self) -> dict[str, Tree]:
        """The samples that steps are judged by."""
        return {half.domain: half.samples for half in self.meta_test}


class Vote(NamedTuple):
    """What a vote is cast on: the live model and losses, the halves, the steps, and the batch that was halved."""

    model: nn.Module
    losses: Losses
    halves: Halves
    steps: HypotheticalSteps
    batch: Mapping[str, Tree]


class VoteProbe(Probe, ABC):
    """Hypothetical losses H_d, from the halves of each domain's batch; `InnerLoop` documents the arguments.

    Attributes:
        scores_always: whether every vote yields each domain's score after each step, not their sums alone. The balancer
            sets it where the weighting needs them.
    """

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest | None = None,
        split: Split = "first",
        every: int = 1,
        warm_up: int = 0,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
        reuse: Reusing = False,
    ) -> None:
        super().__init__(every=every, warm_up=warm_up, gather=gather)
        _check_choice("step", step, get_args(Rule))
        _check_choice("meta_test", meta_test or "eval", get_args(MetaTest))
        _check_choice("split", split, get_args(Split))
        if gather and reuse is True:
            raise ValueError("reuse=True needs votes cast on the outer step's own samples; with gather they are not.")
        self.step = step
        self.meta_test = meta_test or "eval"
        self.meta_test_is_default = meta_test is None
        self.split = split
        self.scaler = scaler
        self.reuse = Reuse(False if gather else reuse)
        self.scores_always = False

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        fewest: int | None = None
        if is_sharded(model):
            batch, _, fewest = common_samples(model, losses.domains, batch)
        halves = halve(batch, split=self.split, seed=int(self.steps), fewest=fewest)
        return self._vote(model, batch, halves, losses=losses, optimizer=optimizer)

    def _measure_held_out(
        self,
        model: nn.Module,
        batch: Mapping[str, Tree],
        held_out: Mapping[str, Tree],
        *,
        losses: Losses,
        optimizer: Optimizer,
    ) -> Measurement | Finding:
        if is_sharded(model):
            batch, held_out, _ = common_samples(model, losses.domains, batch, held_out)
        trains = [Half(name, samples, 1.0) for name, samples in batch.items()]
        tests = [Half(name, samples, 0.0) for name, samples in held_out.items()]
        halves = Halves(trains, tests, held_out=True)
        return self._vote(model, batch, halves, losses=losses, optimizer=optimizer)

    def _vote(
        self, model: nn.Module, batch: Mapping[str, Tree], halves: Halves, *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        if len(halves.meta_train) < 2 or not halves.meta_test:
            return Measurement.nothing(len(losses.domains))
        vote = Vote(model, losses, halves, HypotheticalSteps(optimizer, self.step), batch)
        try:
            with preserved_random_states(model.parameters()):
                return self._cast(vote)
        except HalfTooSmallError:
            return Measurement.nothing(len(losses.domains))

    @abstractmethod
    def _cast(self, vote: Vote) -> Finding:
        """The hypothetical losses; random numbers may be drawn."""

    @property
    def evaluating(self) -> bool:
        """Whether steps are judged in evaluation mode."""
        return self.meta_test != "batch"

    @property
    def yields_scores(self) -> bool:
        """Whether the vote that is due next yields scores."""
        return self.scores_always or self.vote_number % _SCORES_EVERY == 1

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        text = f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"
        return text + f", warm_up={self.warm_up}" if self.warm_up else text


def _check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")


def halve(batch: Mapping[str, Tree], *, split: Split = "first", seed: int = 0, fewest: int | None = None) -> Halves:
    """Divide the batch of every domain that has at least two samples.

    m = ⌊min_d n_d / 2⌋ samples of each are meta-train, the rest meta-test.

    Args:
        batch: each domain's samples.
        split: which samples are meta-train: the `first` m, as in the authors' code, or m at `random`, as in the paper.
        seed: of a random split.
        fewest: min_d n_d where it is smaller on another rank, with which the sizes must agree.
    """
    halves = Halves([], [])
    sizes: dict[str, int] = {}
    for name, samples in batch.items():
        size = count_samples(samples)
        if size >= 2:
            sizes[name] = size
    if not sizes:
        return halves
    m = (fewest or min(sizes.values())) // 2
    generator = torch.Generator().manual_seed(seed)
    for name, size in sizes.items():
        meta_train: slice | list[int] = slice(0, m)
        meta_test: slice | list[int] = slice(m, size)
        if split == "random":
            order = torch.randperm(size, generator=generator).tolist()
            meta_train, meta_test = order[:m], order[m:]
        samples = batch[name]
        halves.meta_train.append(Half(name, take_samples(samples, meta_train), m / size))
        halves.meta_test.append(Half(name, take_samples(samples, meta_test), 1 - m / size))
    return halves


def rest_of(vote: Vote, *, tests_done: bool) -> dict[str, tuple[float, Tree]]:
    """The samples left to the outer step once the meta-train halves are done, and their shares.

    Args:
        vote: what was voted on.
        tests_done: whether the meta-test halves are done, too.
    """
    tests: dict[str, Half] = {}
    if not vote.halves.held_out and not tests_done:
        tests = {half.domain: half for half in vote.halves.meta_test}
    rest: dict[str, tuple[float, Tree]] = {}
    for name, samples in vote.batch.items():
        if name in tests:
            rest[name] = (tests[name].share, tests[name].samples)
        elif name not in vote.halves.names:
            rest[name] = (1.0, samples)
    return rest
