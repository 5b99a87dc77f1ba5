"""TensorBoard logs of a run, for those who want them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.segmentation.training import EpochRecord


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
        writer = writer or SummaryWriter(str(folder), purge_step=first)  # type: ignore[no-untyped-call]
        for step in record.steps:
            for kind, values in (
                ("loss", step.losses),
                ("weight", step.weights),
                ("hypothetical", step.hypothetical),
            ):
                for name, value in values.items():
                    writer.add_scalar(f"{kind}/{name}", value, first + step.step)  # type: ignore[no-untyped-call]
        for name, value in record.validation.items():
            writer.add_scalar(f"validation/{name}", value, first + len(record.steps) - 1)  # type: ignore[no-untyped-call]
        writer.flush()  # type: ignore[no-untyped-call]
        yield record
    if writer is not None:
        writer.close()  # type: ignore[no-untyped-call]
