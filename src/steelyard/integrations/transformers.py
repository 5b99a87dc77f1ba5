"""Hugging Face Transformers: a `Trainer` whose loss is weighed by a balancer. Tested with transformers 5.23.

`Trainer` has private methods that this module extends, because no public ones exist: they decide which columns reach
the model, and read and write the optimizer's part of a checkpoint.
"""

import io
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from steelyard.batches import Tree, count_samples, split_by_domain, take_samples
from steelyard.files.atomic import write_bytes
from steelyard.training import Balancer

STATE_FILE = "balancer.pt"
"""The balancer's file in a checkpoint folder."""
_IGNORED = -100  # the label of a token, or of a sample, that has no target

Samples = Mapping[str, Any]
Collator = Callable[[list[Any]], Any]


def model_loss(model: nn.Module, batch: Samples) -> Tensor:
    """The loss that a model of Transformers returns itself, to be a balancer's objective.

    It is a mean over the domain's samples; of a language model, over all tokens of these samples that have a label.

    >>> from types import SimpleNamespace
    >>> model_loss(lambda labels: SimpleNamespace(loss=labels.mean()), {"labels": torch.tensor([1.0, 3.0])})
    tensor(2.)
    """
    outputs = model(**batch)
    loss: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs.loss
    return loss


class DomainTrainer(Trainer):
    """A `Trainer` that weighs the losses of several domains, and learns the weights while it trains.

    A column of the dataset names each sample's domain. One vote is cast for each step of the optimizer, on its first
    batch; the weights then stay until the next step. Logs have each domain's loss and weight. Checkpoints hold the
    balancer. An evaluation on data with the column also has `eval_loss_<domain>`.

    To extend another trainer, derive from both: `class Mine(DomainTrainer, Seq2SeqTrainer): ...`.

    Args:
        *args: as for `Trainer`.
        balancer: weighs the losses. It gets each domain's samples as a mapping of columns.
        domain_column: the column with a name of a domain, or its index in the balancer's domains.
        **kwargs: as for `Trainer`.

    >>> import steelyard as sy
    >>> balancer = sy.Balancer(("news", "chat"), objective=model_loss)
    >>> trainer = DomainTrainer(model, args, train_dataset=data, balancer=balancer)  # doctest: +SKIP
    >>> trainer.train(); print(balancer.audit())  # doctest: +SKIP
    """

    # The balancer's loss is a mean, so the trainer must divide it by the number of accumulated batches. Newer versions
    # ask this attribute, older ones `model_accepts_loss_kwargs`.
    loss_is_scaled_for_ga = False

    def __init__(self, *args: Any, balancer: Balancer, domain_column: str = "domain", **kwargs: Any) -> None:
        self.balancer, self.domain_column = balancer, domain_column
        super().__init__(*args, **kwargs)
        self._check_settings()
        self.model_accepts_loss_kwargs = False
        self.data_collator = DomainCollator(self.data_collator, domain_column, balancer.domains)
        self._step_start = _StepStart()
        self.add_callback(self._step_start)
        self._train_losses = MeanLosses(balancer.domains, self.args.device)
        self._eval_losses = MeanLosses(balancer.domains, self.args.device)

    def _check_settings(self) -> None:
        """Refuse settings that would have no effect, or give one loss per GPU."""
        if self.compute_loss_func is not None or self.label_smoother is not None:
            raise ValueError(
                "compute_loss_func and label_smoothing_factor have no effect here, because the balancer computes the "
                "loss: pass your loss as sy.Balancer(…, objective=…)."
            )
        if self.args.n_gpu > 1:
            raise ValueError(
                f"start one process for each of the {self.args.n_gpu} GPUs: torchrun, or accelerate launch."
            )

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The weighted loss in training; the model's own loss in an evaluation."""
        samples, labels = self._without_domains(inputs)
        if not model.training:
            return super().compute_loss(model, samples, *args, **kwargs)
        if labels is None:
            raise ValueError(
                f"the training data lack the column {self.domain_column!r}, which must hold each sample's domain; "
                f"they have the columns {self._training_columns()}. Pass domain_column=."
            )
        batch = self._split(samples, labels)
        loss = self.balancer(model, batch, self.optimizer, measure=self._step_start.take())
        assert self.balancer.last is not None  # noqa: S101
        self._train_losses.add(self.balancer.last.losses, batch)
        return loss

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As in `Trainer`; where the domains are known, their losses are computed as well, by a second pass."""
        samples, labels = self._without_domains(inputs)
        loss_and_outputs = super().prediction_step(model, samples, *args, **kwargs)
        has_loss = loss_and_outputs[0] is not None
        if labels is not None and has_loss:
            batch = self._split(self._prepare_inputs(samples), labels)
            with torch.no_grad():
                self._eval_losses.add(self.balancer.domain_losses(model, batch), batch)
        return loss_and_outputs

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """As in `Trainer`, with the loss of each domain."""
        self._eval_losses = MeanLosses(self.balancer.domains, self.args.device)
        output: Any = super().evaluation_loop(*args, **kwargs, metric_key_prefix=metric_key_prefix)  # type: ignore[misc]
        for name, loss in self._eval_losses.take(self.accelerator).items():
            output.metrics[f"{metric_key_prefix}_loss_{name}"] = loss
        return output

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As in `Trainer`; logs of training also have losses, weights, shares and flags of the domains.

        The losses are averaged since the last log, over all ranks. So all ranks must log, as in `Trainer`.
        """
        if "learning_rate" in logs:  # in logs of training alone
            for name, number in self.balancer.scalars().items():
                if not name.startswith("transfer/"):  # one for each pair of domains: too many for a line of a log
                    logs[name] = number
            for name, loss in self._train_losses.take(self.accelerator).items():
                logs[f"loss/{name}"] = loss
        super().log(logs, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            content = io.BytesIO()
            torch.save(self.balancer.state_dict(), content)
            write_bytes(Path(output_dir) / STATE_FILE, content.getvalue())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / STATE_FILE
        if path.is_file():
            self.balancer.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        else:
            warnings.warn(f"{path} does not exist: the weights of the domains start anew.", stacklevel=2)

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the domain column, which the model does not take."""
        super()._set_signature_columns_if_needed()
        columns: list[str] = self._signature_columns or []
        self._signature_columns = [*dict.fromkeys([*columns, self.domain_column])]  # type: ignore[assignment]

    def _without_domains(self, inputs: Samples) -> tuple[dict[str, Any], Any]:
        """The model's inputs, and each sample's domain; `None` if the domains are not known."""
        samples = dict(inputs)
        labels = samples.pop(self.domain_column, None)
        return samples, labels

    def _split(self, samples: dict[str, Any], labels: Any) -> dict[str, Tree]:
        """Each domain's samples."""
        batch = split_by_domain(samples, labels, self.balancer.domains)
        with_targets: dict[str, Tree] = {}
        for name, domain_batch in batch.items():
            rows = _rows_with_targets(domain_batch)
            if rows:
                with_targets[name] = take_samples(domain_batch, rows)
        return with_targets or batch  # without any label the loss is not a number, as without a balancer

    def _training_columns(self) -> list[str]:
        """The columns of the training data, for a message."""
        dataset: Any = self.train_dataset
        return list(getattr(dataset, "column_names", None) or next(iter(dataset)))


def _rows_with_targets(samples: Samples) -> list[int]:
    """The samples that have a label. Without one, the mean over a domain's labels would not be a number."""
    labels = samples.get("labels")
    if not isinstance(labels, Tensor) or labels.is_floating_point():  # of a regression all numbers are targets
        return list(range(count_samples(samples)))
    has_target = (labels != _IGNORED).reshape(len(labels), -1).any(dim=1)
    rows: list[int] = has_target.nonzero().flatten().tolist()
    return rows


class _StepStart(TrainerCallback):
    """Tells the first batch of a step of the optimizer from those that are accumulated after it."""

    def __init__(self) -> None:
        self._is_first = False

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """The next batch is the first."""
        self._is_first = True

    def take(self) -> bool:
        """Whether this batch is the first; the next one is not."""
        is_first, self._is_first = self._is_first, False
        return is_first


class DomainCollator:
    """Collates samples without their domain column, and adds the domains to the batch as numbers.

    Collators drop strings, or fail at them.

    Args:
        collate: makes a batch of samples.
        column: the domain column. Samples without it are collated as they are.
        domains: the names of the domains.

    >>> collate = DomainCollator(torch.utils.data.default_collate, "domain", ("news", "chat"))
    >>> collate([{"x": 1, "domain": "chat"}, {"x": 2, "domain": 0}])
    {'x': tensor([1, 2]), 'domain': tensor([1, 0])}
    """

    def __init__(self, collate: Collator, column: str, domains: Sequence[str]) -> None:
        self.collate, self.column, self.domains = collate, column, tuple(domains)
        self.tokenizer = getattr(collate, "tokenizer", None)  # a checkpoint holds it

    def __call__(self, samples: list[Any]) -> Any:
        """A batch."""
        if not isinstance(samples[0], Mapping) or self.column not in samples[0]:
            return self.collate(samples)
        numbers: list[int] = []
        others: list[dict[str, Any]] = []
        for sample in samples:
            columns = dict(sample)
            numbers.append(self._number(columns.pop(self.column, None)))
            others.append(columns)
        batch = self.collate(others)
        batch[self.column] = torch.tensor(numbers)
        return batch

    def _number(self, label: Any) -> int:
        """The index of a domain."""
        if isinstance(label, str) and label in self.domains:
            return self.domains.index(label)
        if hasattr(label, "__index__") and 0 <= operator.index(label) < len(self.domains):
            return operator.index(label)
        raise ValueError(
            f"the column {self.column!r} must hold a domain of the balancer, one of {self.domains}, "
            f"or its index; got {label!r}."
        )


class MeanLosses:
    """Each domain's mean loss over samples, batches and ranks; what is averaged stays on the device until it is taken.

    Args:
        domains: the names of the domains.
        device: where the sums are.
    """

    def __init__(self, domains: Sequence[str], device: torch.device) -> None:
        self.domains = tuple(domains)
        self._sums = torch.zeros(2, len(self.domains), device=device)  # of the losses; of the samples

    def add(self, losses: Mapping[str, Tensor], batch: Mapping[str, Tree]) -> None:
        """Add a batch."""
        for name, loss in losses.items():
            column, size = self.domains.index(name), count_samples(batch[name])
            self._sums[0, column] += size * loss.detach().to(self._sums)
            self._sums[1, column] += size

    def take(self, accelerator: Any) -> dict[str, float]:
        """The mean losses of the domains that had samples on any rank; the averages then begin anew."""
        totals, sizes = accelerator.reduce(self._sums, reduction="sum").tolist()
        self._sums.zero_()
        means: dict[str, float] = {}
        for name, total, size in zip(self.domains, totals, sizes, strict=True):
            if size:
                means[name] = total / size
        return means
