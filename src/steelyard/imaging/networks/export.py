"""A trained network as ONNX, for those who predict without torch."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import numpy as np
import torch
from torch import nn

from steelyard.errors import UserError
from steelyard.files.atomic import write_bytes
from steelyard.imaging.scans.frame import Frame

AGREEMENT = 1e-4
"""How far a probability may differ between torch and ONNX Runtime."""

_STEP = 16  # pixels; rows and columns may be any multiple of this
_DEFAULT_SHAPE = (128, 128)  # rows and columns of the example, for a frame without a shape


def export_onnx(network: nn.Module, path: Path, *, frame: Frame) -> float:
    """Write a network as ONNX: `slices` in, `probabilities` out; any number of slices, any multiple of 16 pixels.

    Args:
        network: In evaluation mode.
        path: The file, written only if ONNX Runtime agrees with torch.
        frame: The planes the network was trained on; stored in the file's metadata.

    Returns:
        The largest difference between a probability of torch and of ONNX Runtime, over slices of three sizes.

    Raises:
        UserError: The extra is not installed, the network cannot be exported, or the two disagree.
    """
    with_sigmoid = _Probabilities(network).eval()
    content = _convert(with_sigmoid, frame)
    difference = max(_differences(with_sigmoid, content, frame))
    if not difference <= AGREEMENT:
        raise UserError(f"{path}: ONNX Runtime differs from torch by {difference:.2g}; nothing was written.")
    write_bytes(path, content)
    return difference


class _Probabilities(nn.Module):
    """A network whose output is probabilities instead of logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, slices: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(slices)
        return logits.sigmoid()


def _convert(network: nn.Module, frame: Frame) -> bytes:
    """Return the network as the bytes of an ONNX file."""
    rows, columns = frame.shape or _DEFAULT_SHAPE
    # Free axes of the input, samples × 1 × rows × columns; torch wants at least 2 of what is free.
    free_axes = {
        0: torch.export.Dim("slices"),
        2: _STEP * torch.export.Dim("r", min=2),
        3: _STEP * torch.export.Dim("c", min=2),
    }
    try:
        with _quiet():
            program = torch.onnx.export(
                network,
                (torch.zeros(2, 1, rows, columns),),
                input_names=["slices"],
                output_names=["probabilities"],
                dynamic_shapes=(free_axes,),
                dynamo=True,
            )
    except ImportError as error:
        raise UserError("ONNX is not installed: pip install 'steelyard[onnx]'.") from error
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the network cannot be exported to ONNX: {str(error).splitlines()[0]}") from error
    assert program is not None  # noqa: S101
    model = program.model_proto
    for key, value in (("pixel_mm", frame.pixel_mm), ("shape", frame.shape)):
        entry = model.metadata_props.add()
        entry.key, entry.value = f"steelyard.{key}", str(value)
    packed: bytes = model.SerializeToString()
    return packed


def _differences(network: nn.Module, content: bytes, frame: Frame) -> Iterator[float]:
    """Yield the largest difference between torch and ONNX Runtime, for random slices of three sizes."""
    try:
        from onnxruntime import InferenceSession
    except ImportError as error:
        raise UserError("ONNX Runtime is not installed: pip install 'steelyard[onnx]'.") from error
    try:
        session = InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for every fault
        raise UserError(f"ONNX Runtime cannot load the network: {str(error).splitlines()[0]}") from error
    rows, columns = frame.shape or _DEFAULT_SHAPE
    generator = torch.Generator().manual_seed(0)
    for count, height, width in ((1, rows, columns), (3, rows + _STEP, columns), (2, rows, columns + 2 * _STEP)):
        slices = 2 * torch.randn(count, 1, height, width, generator=generator)
        with torch.inference_mode():
            torch_probabilities = network(slices).numpy()
        onnx_probabilities = session.run(None, {"slices": slices.numpy()})[0]  # None asks for all outputs
        yield float(np.abs(torch_probabilities - onnx_probabilities).max())


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which reports its steps on standard output and warns about its own code."""
    level = logging.getLogger("torch.onnx").level
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch.onnx").setLevel(level)
