"""The run folder: everything about one run, in files that may come from anybody.

This module reads; `steelyard.imaging.train.run_writer` writes. A weights file is data: safetensors holds numbers only,
JSON and CSV are read as such. A network that is named by import path is code: a file alone never has it imported.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final, get_args

from torch import nn

from steelyard.errors import UserError
from steelyard.files.records import read_json
from steelyard.imaging.networks.accelerator import Accelerator
from steelyard.imaging.networks.build import build_network, is_code
from steelyard.imaging.networks.weights_file import check_size, load_weights
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.split import Split, read_split

CONFIG, SPLIT, ENVIRONMENT, FINISHED = "config.json", "split.json", "environment.json", "finished.json"
EPOCHS, STEPS, METRICS, AUDIT = "epochs.csv", "steps.csv", "metrics.csv", "audit.json"
CHECKPOINT, BEST, LAST = "checkpoint.pt", "best.safetensors", "last.safetensors"
ACCELERATORS = "accelerators"  # in environment.json


@final
class RunFolder:
    """The folder of one run, to read from.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config(self) -> TrainingConfig:
        """The run's settings."""
        content = self.read(CONFIG)
        try:
            return TrainingConfig.from_dict(content)
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from error

    @property
    def split(self) -> Split:
        """The subjects for training, validation and test."""
        try:
            return read_split(self.read(SPLIT).get("split"))
        except UserError as error:
            raise UserError(f"{self.path / SPLIT}: holds no split, {error}") from error

    @property
    def digests(self) -> dict[str, str]:
        """A digest of each subject's slices."""
        digests = self.read(SPLIT).get("digests", {})
        if not isinstance(digests, dict):
            raise UserError(f"{self.path / SPLIT}: digests must be an object.")
        return {subject: str(digest) for subject, digest in digests.items()}

    @property
    def finished(self) -> bool:
        """Whether training has ended."""
        return (self.path / FINISHED).exists()

    @property
    def has_epochs(self) -> bool:
        """Whether an epoch was trained; a start that failed, or was stopped before, leaves none of these files."""
        if any((self.path / name).exists() for name in (EPOCHS, CHECKPOINT, FINISHED, BEST, METRICS)):
            return True
        # A start records the machine before it writes the initial weights; weights alone are somebody's trained ones.
        return (self.path / LAST).exists() and not (self.path / ENVIRONMENT).exists()

    @property
    def accelerator(self) -> str | None:
        """The kind of device that trained the last epoch; `None` if the folder does not say."""
        if not (self.path / ENVIRONMENT).exists():
            return None
        recorded = self.read(ENVIRONMENT).get(ACCELERATORS)
        if not isinstance(recorded, list) or not recorded or not isinstance(recorded[-1], dict):
            return None
        kind = recorded[-1].get("kind")
        return str(kind) if kind in get_args(Accelerator) else None

    @property
    def weights(self) -> Path:
        """The weights file that the run is evaluated with."""
        if self.config.schedule == "plateau":
            return self.path / BEST
        return self.path / LAST

    def network(self, *, model: str | None = None) -> nn.Module:
        """Return the trained network, in evaluation mode.

        Args:
            model: The network's import path, from the user. Without it only built-in networks are built.

        Raises:
            UserError: There are no weights, they are damaged or of another architecture, or the network is code.
        """
        config = self.config
        if is_code(config.model) and model != config.model:
            raise UserError(
                f"{self.path / CONFIG}: the network is {config.model!r}, which is code of somebody's; "
                f"if you trust it, say --model {config.model}."
            )
        path = self.weights
        if not path.exists():
            raise UserError(f"{path}: there are no weights; train the run first, with `steelyard train`.")
        if not is_code(config.model):
            check_size(path, config.model, width=config.width, options=config.options)
        network = build_network(config.model, width=config.width, options=config.options)
        load_weights(network, path)
        return network.eval()

    def check_same(self, config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> None:
        """Make sure that the run in the folder, if there is one, is this run.

        Raises:
            UserError: It has other settings or other data; the message names the first difference.
        """
        expected = identity(config, split, digests)
        if (self.path / CONFIG).exists():
            # The config is parsed, because the file may hold another name of the same method.
            refuse_difference(self.path / CONFIG, self.config.as_dict(), expected[CONFIG])
        if (self.path / SPLIT).exists():
            refuse_difference(self.path / SPLIT, self.read(SPLIT), expected[SPLIT])

    def read(self, name: str) -> dict[str, Any]:
        """Return the JSON object in one of the run's files.

        Raises:
            UserError: There is no such file, or it is damaged.
        """
        path = self.path / name
        if not path.exists():
            raise UserError(f"{path}: there is no such file; this is not a run folder. `steelyard train` makes one.")
        return read_json(path)


def identity(config: TrainingConfig, split: Split, digests: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the contents of the files that say which run it is, by the name of the file."""
    return {CONFIG: config.as_dict(), SPLIT: {"split": split.as_dict(), "digests": dict(digests)}}


def refuse_difference(path: Path, content: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse to continue with a file that belongs to another run or experiment.

    Raises:
        UserError: The file's content is not the expected one; the message names the first difference.
    """
    # After a round trip both sides hold what JSON can: lists instead of tuples.
    content, expected = json.loads(json.dumps(content)), json.loads(json.dumps(expected))
    for name in dict.fromkeys((*content, *expected)):
        if content.get(name) != expected.get(name):
            was, now = json.dumps(content.get(name)), json.dumps(expected.get(name))
            if len(was) + len(now) > 120:
                raise UserError(f"{path}: the run there has another {name}; give another folder.")
            raise UserError(f"{path}: the run there has {name} {was}, not {now}; give another folder.")
