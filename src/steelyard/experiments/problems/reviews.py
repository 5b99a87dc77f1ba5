"""Reviews of products and films, good or bad: each kind of product is a domain (FDU-MTL, Liu et al. 2017)."""

import gzip
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, final

import torch
from sklearn.feature_extraction.text import HashingVectorizer
from torch import Tensor, nn

from steelyard.errors import UserError, reason
from steelyard.experiments.problems.classification import Classification, area_under_curve
from steelyard.experiments.problems.data_files import require_file, require_two_classes
from steelyard.experiments.problems.problem import DomainData, Labelled, Spoiling
from steelyard.experiments.problems.spoiling import standard_variants
from steelyard.files.regular_files import open_regular

FOUR_KINDS = ("books", "dvd", "electronics", "kitchen_housewares")
"""The four kinds that most of the literature uses."""
OTHER_KINDS = (
    *("apparel", "baby", "camera_photo", "health_personal_care", "imdb", "magazines"),
    *("MR", "music", "software", "sports_outdoors", "toys_games", "video"),
)
_FOLDER = "fdu-mtl"
_FEATURES = 2**12
_LENGTH = 10.0  # of a review's vector; with length 1 plain SGD would need far more steps
_VALIDATION = 200  # reviews of each kind, taken from those for training


@final
@dataclass(frozen=True)
class Reviews(Classification):
    """Which hashed words a review has, and whether it is good. The metric is the area under the ROC curve.

    Args:
        name: As results have it.
        data: The folder that has the folder `fdu-mtl`.
        kinds: The domains.
    """

    name: str
    data: Path
    kinds: tuple[str, ...]
    steps: ClassVar[int] = 800
    batch_size: ClassVar[int] = 16
    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.1, "adamw": 1e-3}
    stackable: ClassVar[bool] = True

    @property
    def variants(self) -> Mapping[str, Spoiling]:
        """How the problem may be spoiled."""
        return standard_variants(len(self.kinds))

    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains; reviews for the test are always those that the authors of the data chose.

        Raises:
            UserError: A file is missing or damaged.
        """
        domains = {}
        for kind in self.kinds:
            learning = _read_reviews(self.data / _FOLDER / f"{kind}.train.tsv.gz")
            rows = torch.randperm(len(learning.targets), generator=generator)
            domains[kind] = DomainData(
                train=learning.take(rows[_VALIDATION:]),
                validation=learning.take(rows[:_VALIDATION]),
                test=_read_reviews(self.data / _FOLDER / f"{kind}.test.tsv.gz"),
            )
        return domains

    def build_model(self) -> nn.Module:
        """Return a linear classifier."""
        return nn.Sequential(_EqualLength(), nn.Linear(_FEATURES, 2))

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the area under the ROC curve."""
        return area_under_curve(outputs, targets)


class _EqualLength(nn.Module):
    """Brings every review's vector to one length."""

    def forward(self, words: Tensor) -> Tensor:
        """Return vectors of 32-bit floats."""
        present = words.float()  # bytes in memory: as floats, 16 kinds would need half a gigabyte
        counts = present.sum(-1, keepdim=True).clamp(min=1)
        return present * (_LENGTH / counts.sqrt())


@lru_cache(maxsize=2 * (len(FOUR_KINDS) + len(OTHER_KINDS)))
def _read_reviews(path: Path) -> Labelled:
    """Read a file of lines `LABEL<tab>text`; a row for each, a column for each hashed word, 1 where it is present.

    Raises:
        UserError: The file is missing or damaged.
    """
    require_file(path)
    texts, labels = [], []
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
            for line in io.TextIOWrapper(unpacked, encoding="utf-8", errors="replace", newline="\n"):
                label, separator, text = line.partition("\t")
                if label not in ("0", "1") or not separator:
                    raise UserError(f"{path}: every line must be 0 or 1, a tab and a text.")
                texts.append(text)
                labels.append(int(label))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: is damaged.") from error
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error
    require_two_classes(path, labels, samples="good and bad reviews")
    hashing = HashingVectorizer(n_features=_FEATURES, binary=True, norm=None, alternate_sign=False)
    return Labelled(torch.tensor(hashing.transform(texts).toarray().astype("uint8")), torch.tensor(labels))
