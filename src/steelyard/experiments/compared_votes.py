"""Cheaper votes beside exact ones: at the same weights, on the same batches."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import final

from lightning.fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.errors import UserError
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.train.data import load_labelled, read_prepared
from steelyard.imaging.train.launch import Assignment, set_out
from steelyard.imaging.train.training import EpochRecord, fit
from steelyard.imaging.train.weighing import make_probe, make_weighting
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.probe import Finding, Losses, Probe
from steelyard.probing.vote_probe import VoteProbe

Row = dict[str, object]


@final
class Compared(Probe):
    """Steers by one probe, and asks others at the same weights on the same batch without following them.

    Args:
        steering: The one that training follows; it decides as it would alone.
        beside: The others, by name.

    Attributes:
        answers: What each of the others found, a step each; the caller takes them out.
    """

    statistic = Statistic.HYPOTHETICAL_LOSSES

    def __init__(self, steering: VoteProbe, beside: Mapping[str, VoteProbe]) -> None:
        super().__init__()
        if late := [probe for probe in (steering, *beside.values()) if probe.every > 1 or probe.gathering]:
            raise ValueError(f"every probe must answer on every step; got {late[0]}.")
        self.steering = steering
        self.beside = nn.ModuleDict({str(place): probe for place, probe in enumerate(beside.values())})
        self.names = tuple(beside)
        self.answers: list[dict[str, Measurement]] = []

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        found = self.steering.find(model, batch, losses=losses, optimizer=optimizer)
        assert found is not None  # noqa: S101
        answers = {}
        for name, probe in zip(self.names, self.beside.values(), strict=True):
            assert isinstance(probe, VoteProbe)  # noqa: S101
            answer = probe.measure(model, batch, losses=losses, optimizer=optimizer)
            assert answer is not None  # noqa: S101
            answers[name] = answer
        self.answers.append(answers)
        return found


def retrace(
    run: RunFolder, data: Path, methods: Sequence[str], *, epochs: int | None = None, cache: Path | None = None
) -> Iterator[list[Row]]:
    """Train a run again as it was, ask other methods' probes at its every step, and yield an epoch's votes at a time.

    Args:
        run: Trained by exact votes; it is read, not changed.
        data: What it was trained on.
        methods: Whose probes to ask.
        epochs: Only the first so many; the learning rate goes on as in the whole run.
        cache: A folder that keeps the slices.

    Raises:
        UserError: The run does not vote on every step, or the data are others than it was trained on.
    """
    config = run.config
    steering = _probe(config, config.method)
    if steering.every > 1:
        raise UserError(f"{run.path}: votes on each {steering.every}th step only; exact votes are needed on every one.")
    slices = load_labelled(read_prepared(data), config.slices, domains=config.domains, cache=cache)
    run.check_same(config, run.split, slices.digests)
    assignment = Assignment(config=config, split=run.split, slices=slices, out=run.path)
    trainee, learned, judged = set_out(assignment, Fabric(accelerator="cpu", devices=1))
    compared = Compared(steering, {method.name: _probe(config, method) for method in map(Method.parse, methods)})
    trainee.balancer.probe = compared
    for record in islice(fit(trainee, learned, judged), epochs):
        yield list(_rows(record, compared.answers, config))
        compared.answers.clear()


def _probe(config: TrainingConfig, method: Method) -> VoteProbe:
    probe = make_probe(method, meta_test=config.meta_test, every=config.every)
    if probe is None or method.window is None:
        raise UserError(f"method {method.name}: casts no votes; there is nothing to compare.")
    return probe


def _rows(record: EpochRecord, answers: Sequence[Mapping[str, Measurement]], config: TrainingConfig) -> Iterator[Row]:
    """Yield a row per step and method: its vote and hypothetical losses."""
    for step, others in zip(record.steps, answers, strict=True):
        place: Row = {"epoch": record.epoch, "step": step.step}
        yield place | _row(config, config.method.name, step.vote, step.hypothetical)
        for method, answer in others.items():
            named = {config.trained[d]: answer.values[d].item() for d in answer.taking_part}
            yield place | _row(config, method, _vote(config, answer), named)


def _row(config: TrainingConfig, method: str, vote: str | None, hypothetical: Mapping[str, float]) -> Row:
    row: Row = {"method": method, "vote": vote or ""}
    return row | {f"hypothetical_{name}": hypothetical.get(name, "") for name in config.trained}


def _vote(config: TrainingConfig, answer: Measurement) -> str | None:
    """Return whom the run's weighting would have voted for."""
    weighting = make_weighting(config.method, config.trained, prior=config.prior)
    weighting.start(len(config.trained))
    vote = weighting.observe(answer).vote
    return None if vote is None else config.trained[vote]
