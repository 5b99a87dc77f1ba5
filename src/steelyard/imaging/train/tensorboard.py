"""TensorBoard logs of a run, for those who want them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.train.training import EpochRecord


def logged(records: Iterable[EpochRecord], folder: Path) -> Iterator[EpochRecord]:
    """Yield the records as they come, each written to a TensorBoard log first.

    Raises:
        UserError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed: pip install 'steelyard[tensorboard]'.") from error
    writer = None
    for record in records:
        first = record.epoch * len(record.steps)
        writer = writer or SummaryWriter(str(folder), purge_step=first)
        for step in record.steps:
            for kind, values in (
                ("loss", step.losses),
                ("weight", step.weights),
                ("hypothetical", step.hypothetical),
            ):
                for name, value in values.items():
                    writer.add_scalar(f"{kind}/{name}", value, first + step.step)
        for name, value in record.validation.items():
            writer.add_scalar(f"validation/{name}", value, first + len(record.steps) - 1)
        writer.flush()
        yield record
    if writer is not None:
        writer.close()
