"""nnU-Net v2: a trainer that learns the weights of domains. Seen with nnunetv2 2.8.1."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from torch import Tensor, nn

from steelyard.batches import split_by_domain
from steelyard.probing import FirstOrder
from steelyard.training import Balancer

_DOMAINS_FILE = "domains.json"
_EVERY = 8  # steps between two votes, after the first ones
_WARM_UP = 100  # steps with a vote each
_LARGEST_GRADIENT = 12.0  # the norm at which nnU-Net clips


class nnUNetTrainerDomains(nnUNetTrainer):  # type: ignore[misc]  # noqa: N801  # nnU-Net's way to name a trainer
    """Trains as `nnUNetTrainer` does, on the domains' losses weighted by what each domain is worth to all.

    The domain of a case is what `domains.json` says, a mapping of case to domain beside the preprocessed
    `dataset.json`; without that file it is the case's name up to the first underscore. The loss is the mean over the
    domains in the batch, with learned weights: equal weights and a batch of two give the loss of `nnUNetTrainer`.

    A patch batch often holds one sample of a domain, which cannot be halved. So votes are cast on the newest two
    samples of each domain (`gather=True`): on each of the first 100 steps, then on each eighth. Weights are written to
    the log after each epoch, the audit at the end of the training, and the balancer's state to every checkpoint.

    nnU-Net looks for trainers in the folders of the environment variable `nnUNet_extTrainer`. Put a file there with
    `from steelyard.integrations.nnunet import nnUNetTrainerDomains`, and pass `-tr nnUNetTrainerDomains`.

    Override `domain_of` for another rule, and `make_balancer` for another weighting, probe or judge.
    """

    balancer: Balancer

    def domain_of(self, case: str) -> str:
        """The name of a case's domain.

        Args:
            case: nnU-Net's identifier, such as `oslo_017`.
        """
        domains = self._domains_of_file
        if domains is None:
            return case.partition("_")[0]
        if case not in domains:
            raise ValueError(f"{_DOMAINS_FILE} must name the domain of every case; {case!r} is missing.")
        return str(domains[case])

    def make_balancer(self, domains: Sequence[str]) -> Balancer:
        """The balancer of the training.

        Args:
            domains: the names of the training cases' domains.
        """
        every = max(_EVERY, 2 * len(domains))  # a vote grows with the number of domains
        probe = FirstOrder(gather=True, every=every, warm_up=_WARM_UP, scaler=self.grad_scaler)
        return Balancer(domains, loss=self.loss, probe=probe)

    def initialize(self) -> None:
        """As nnU-Net does; then make the balancer for the domains of the training cases."""
        if self.is_ddp:
            raise ValueError(f"{type(self).__name__} trains on one GPU: leave -num_gpus out.")
        super().initialize()
        self._domains_of_file = _read_domains(Path(self.preprocessed_dataset_folder_base, _DOMAINS_FILE))
        training_cases, _ = self.do_split()
        domains = Counter(self.domain_of(case) for case in training_cases)
        _check_domains(domains)
        self.print_to_log_file(f"Training cases by domain: {dict(domains)}")
        self.balancer = self.make_balancer(sorted(domains)).to(self.device)

    def train_step(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """One step, as in nnU-Net, on the weighted loss.

        Args:
            batch: as nnU-Net's loaders make it: `data`, `target` and the cases' names, `keys`.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss = self._weighted_loss(batch)
        if self.grad_scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self._clip()
            self.optimizer.step()
        else:
            self.grad_scaler.scale(loss).backward()
            self.grad_scaler.unscale_(self.optimizer)
            self._clip()
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
        return {"loss": loss.detach().cpu().numpy()}

    def _weighted_loss(self, batch: Mapping[str, Any]) -> Tensor:
        """The mean over the domains in the batch, with the learned weights."""
        target = batch["target"]
        if isinstance(target, list):  # deep supervision: one target for each resolution
            target = [part.to(self.device, non_blocking=True) for part in target]
        else:
            target = target.to(self.device, non_blocking=True)
        samples = (batch["data"].to(self.device, non_blocking=True), target)
        labels = [self.domain_of(str(case)) for case in batch["keys"]]
        by_domain = split_by_domain(samples, labels, self.balancer.domains)
        loss: Tensor = self.balancer(self.network, by_domain, self.optimizer)
        # The weights sum to 1 over all domains. Without this, steps would be smaller where few of them are present.
        return loss * (len(self.balancer.domains) / len(by_domain))

    def _precision(self) -> AbstractContextManager[object]:
        """Autocast on a GPU, where nnU-Net uses it."""
        if self.device.type == "cuda":
            return torch.autocast("cuda")
        return nullcontext()

    def _clip(self) -> None:
        nn.utils.clip_grad_norm_(self.network.parameters(), _LARGEST_GRADIENT)

    def on_train_epoch_end(self, train_outputs: list[dict[str, Any]]) -> None:
        """As nnU-Net does; then log the weights.

        Args:
            train_outputs: of the steps.
        """
        super().on_train_epoch_end(train_outputs)
        weights = ", ".join(f"{name} {weight:.3f}" for name, weight in self.balancer.weights.items())
        self.print_to_log_file(f"Weights of the domains: {weights}")
        # Weights & Biases takes any name; nnU-Net's local logger only the names that it plots.
        for logger in self.logger.loggers:
            for name, value in self.balancer.scalars("domains/").items():
                logger.log(name, value, self.current_epoch)

    def on_train_end(self) -> None:
        """As nnU-Net does; then write the audit to the log."""
        super().on_train_end()
        self.print_to_log_file(f"Audit of the domains:\n{self.balancer.audit()}", add_timestamp=False)

    def save_checkpoint(self, filename: str) -> None:
        """As nnU-Net does, with the balancer's state in the same file.

        Args:
            filename: of the checkpoint.
        """
        if self.disable_checkpointing:
            super().save_checkpoint(filename)  # which says so in the log
            return
        part = f"{filename}.part"
        super().save_checkpoint(part)
        checkpoint = torch.load(part, map_location="cpu", weights_only=False)
        checkpoint["balancer"] = self.balancer.state_dict()
        torch.save(checkpoint, part)
        os.replace(part, filename)  # noqa: PTH105  # nnU-Net passes texts

    def load_checkpoint(self, filename_or_checkpoint: str) -> None:
        """As nnU-Net does, and the balancer's state.

        Args:
            filename_or_checkpoint: the file.
        """
        super().load_checkpoint(filename_or_checkpoint)
        checkpoint = torch.load(filename_or_checkpoint, map_location=self.device, weights_only=False)
        if "balancer" not in checkpoint:
            raise ValueError(
                f"{filename_or_checkpoint} must be a checkpoint of {type(self).__name__}; it has no weights."
            )
        self.balancer.load_state_dict(checkpoint["balancer"])


def _read_domains(path: Path) -> dict[str, str] | None:
    """The domain of each case; `None` without a file."""
    if not path.is_file():
        return None
    domains = json.loads(path.read_text())
    if not isinstance(domains, dict):
        raise ValueError(f"{path} must map case to domain; got {type(domains).__name__}.")
    return domains


def _check_domains(cases: Mapping[str, int]) -> None:
    """Refuse domains that cannot be meant.

    Args:
        cases: the number of training cases of each domain.
    """
    advice = f"put a {_DOMAINS_FILE} beside dataset.json, or override domain_of."
    if len(cases) < 2:
        raise ValueError(f"all training cases are of the domain {next(iter(cases))!r}: {advice}")
    if max(cases.values()) == 1:
        raise ValueError(f"each training case is a domain of its own, such as {next(iter(cases))!r}: {advice}")
