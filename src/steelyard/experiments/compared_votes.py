"""Cheaper votes compared with exact ones: at the same weights, on the same batches."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import final

from lightning.fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.errors import UserError
from steelyard.files.atomic import write_text
from steelyard.files.checks import parse_whole
from steelyard.files.records import as_csv, read_rows
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.experiment_folder import SLICES
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.train.data import load_labelled
from steelyard.imaging.train.launch import TrainingJob, prepare_training
from steelyard.imaging.train.method_parts import make_probe, make_weighting
from steelyard.imaging.train.records import EpochRecord
from steelyard.imaging.train.training import fit
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.probe import Finding, Losses, Probe
from steelyard.probing.vote_probe import VoteProbe

Row = dict[str, object]


@final
class Compared(Probe):
    """Trains by one probe, and asks others at the same weights on the same batch without following them.

    Args:
        steering: The probe that training follows; it decides as it would alone.
        beside: The other probes, by name.

    Attributes:
        answers: What each of the other probes measured, step by step; the caller clears the list.
    """

    statistic = Statistic.HYPOTHETICAL_LOSSES

    def __init__(self, steering: VoteProbe, beside: Mapping[str, VoteProbe]) -> None:
        super().__init__()
        for probe in (steering, *beside.values()):
            if probe.every > 1 or probe.gathering:
                raise ValueError(f"every probe must answer on every step; got {probe}.")
        self.steering = steering
        # Names of methods hold characters that names of modules may not, so modules are named by number.
        self.beside = nn.ModuleDict({str(number): probe for number, probe in enumerate(beside.values())})
        self.names = tuple(beside)
        self.answers: list[dict[str, Measurement]] = []

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        finding = self.steering.find(model, batch, losses=losses, optimizer=optimizer)
        assert finding is not None  # noqa: S101
        answers = {}
        for name, probe in zip(self.names, self.beside.values(), strict=True):
            assert isinstance(probe, VoteProbe)  # noqa: S101
            answer = probe.measure(model, batch, losses=losses, optimizer=optimizer)
            assert answer is not None  # noqa: S101
            answers[name] = answer
        self.answers.append(answers)
        return finding


@dataclass(frozen=True, kw_only=True)
class VoteTrace:
    """A run whose votes are to be compared.

    Args:
        run: The run folder, of exact votes.
        epochs: How many of its epochs.
        file: The table to write, within the experiment folder.
    """

    run: Path
    epochs: int
    file: Path


def missing_traces(traces: Sequence[VoteTrace], methods: Collection[str]) -> list[VoteTrace]:
    """Return the runs that must be retraced: no earlier table has the votes of all methods and epochs.

    Raises:
        UserError: An earlier table is damaged.
    """
    missing = []
    for trace in traces:
        if not trace.file.exists():
            missing.append(trace)
            continue
        earlier_methods, earlier_epochs = _read_extent(trace.file)
        if earlier_epochs < trace.epochs or not earlier_methods.issuperset(methods):
            missing.append(trace)
    return missing


def _read_extent(file: Path) -> tuple[set[str], int]:
    """Return the methods, and the number of epochs, that a table of votes holds."""
    methods, epochs = set(), 0
    try:
        for line, row in read_rows(file, ("method", "epoch")):
            methods.add(Method.parse_or_unknown(row["method"]).name)
            epochs = max(epochs, parse_whole(f"{line}: epoch", row["epoch"]) + 1)
    except UserError as error:
        raise UserError(f"{file}: is damaged; remove it to have the run retraced.") from error
    return methods, epochs


def trace_votes(out: Path, data: Path, traces: Sequence[VoteTrace], methods: Sequence[str]) -> Iterator[str]:
    """Retrace runs of an experiment and write a table of votes for each; yield a line per epoch.

    A run that departs from what it was may stop early; its table is written nevertheless.

    Args:
        out: The experiment folder.
        data: The preprocessed dataset of the experiment.
        traces: Which runs.
        methods: Whose probes are asked besides the exact one.

    Raises:
        UserError: As in `retrace`.
    """
    for trace in traces:
        rows: list[Row] = []
        epochs = retrace(RunFolder(trace.run), data, methods, epochs=trace.epochs, cache=out / SLICES)
        for number, epoch_rows in enumerate(epochs, start=1):
            rows += epoch_rows
            yield f"{trace.run.parents[1].name} {trace.run.name}, epoch {number}"
        write_text(trace.file, as_csv(rows), within=out)


def retrace(
    run: RunFolder, data: Path, methods: Sequence[str], *, epochs: int | None = None, cache: Path | None = None
) -> Iterator[list[Row]]:
    """Train a run again as it was, ask other methods' probes at every step, and yield the votes of each epoch.

    Args:
        run: A run that was trained by exact votes; it is read, not changed.
        data: The preprocessed dataset that it was trained on.
        methods: Whose probes to ask.
        epochs: Only this many epochs; the learning rate follows the schedule of the whole run.
        cache: A folder that keeps the slices.

    Raises:
        UserError: The run does not vote on every step, or the data are not those it was trained on.
    """
    config = run.config
    steering = _probe(config, config.method)
    if steering.every > 1:
        raise UserError(f"{run.path}: votes on each {steering.every}th step only; exact votes are needed on every one.")
    slices = load_labelled(read_prepared(data), config.slices, domains=config.domains, cache=cache)
    run.check_same(config, run.split, slices.digests)
    job = TrainingJob(config=config, split=run.split, slices=slices, out=run.path)
    training_state, learned, judged = prepare_training(job, Fabric(accelerator="cpu", devices=1))
    compared = Compared(steering, {method.name: _probe(config, method) for method in map(Method.parse, methods)})
    training_state.balancer.probe = compared
    for record in islice(fit(training_state, learned, judged), epochs):
        yield list(_rows(record, compared.answers, config))
        compared.answers.clear()


def _probe(config: TrainingConfig, method: Method) -> VoteProbe:
    probe = make_probe(method, meta_test=config.meta_test, every=config.every)
    if not isinstance(probe, VoteProbe) or method.window is None:
        raise UserError(f"method {method.name}: casts no votes; there is nothing to compare.")
    return probe


def _rows(record: EpochRecord, answers: Sequence[Mapping[str, Measurement]], config: TrainingConfig) -> Iterator[Row]:
    """Yield a row per step and method: its vote and hypothetical losses."""
    for step, others in zip(record.steps, answers, strict=True):
        position: Row = {"epoch": record.epoch, "step": step.step}
        yield position | _row(config, config.method.name, step.vote, step.hypothetical)
        for method, answer in others.items():
            losses = {config.trained[domain]: answer.values[domain].item() for domain in answer.taking_part}
            yield position | _row(config, method, _vote(config, answer), losses)


def _row(config: TrainingConfig, method: str, vote: str | None, hypothetical: Mapping[str, float]) -> Row:
    row: Row = {"method": method, "vote": vote or ""}
    for name in config.trained:
        row[f"hypothetical_{name}"] = hypothetical.get(name, "")
    return row


def _vote(config: TrainingConfig, answer: Measurement) -> str | None:
    """Return the domain that the run's weighting would have voted for; `None` if it would not have voted."""
    weighting = make_weighting(config.method, config.trained, prior=config.prior)
    weighting.start(len(config.trained))
    vote = weighting.observe(answer).vote
    if vote is None:
        return None
    return config.trained[vote]
