import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from torch import nn

from steelyard.errors import UserError
from steelyard.imaging.networks import export
from steelyard.imaging.networks.build import build_network
from steelyard.imaging.networks.export import export_onnx
from steelyard.imaging.scans.frame import Frame

FRAME = Frame(shape=(48, 32), pixel_mm=2.0)


@pytest.mark.parametrize("model", [pytest.param("unet", marks=pytest.mark.slow), "lightweight"])
def test_onnx_runtime_says_what_torch_says_at_any_size(model, tmp_path):
    torch.manual_seed(0)
    network = build_network(model, width=4).eval()
    assert export_onnx(network, tmp_path / "model.onnx", frame=FRAME) < 1e-4
    session = InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    slices = torch.randn(5, 1, 64, 80)
    with torch.no_grad():
        ours = network(slices).sigmoid().numpy()
    theirs = session.run(["probabilities"], {"slices": slices.numpy()})[0]
    assert np.abs(ours - theirs).max() < 1e-4
    held = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert held["steelyard.pixel_mm"] == "2.0"


def test_a_file_that_disagrees_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_converted", lambda *_: b"a model")
    monkeypatch.setattr(export, "_differences", lambda *_: [1e-5, 2e-4])
    with pytest.raises(UserError, match=r"ONNX Runtime differs from torch by 0.0002; nothing was written"):
        export_onnx(build_network("unet", width=4).eval(), tmp_path / "model.onnx", frame=FRAME)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_said(tmp_path):
    class Stubborn(nn.Conv2d):
        def forward(self, slices):
            return super().forward(slices) if float(slices.sum()) > 0 else slices

    with pytest.raises(UserError, match="cannot be exported"):
        export_onnx(Stubborn(1, 1, 1), tmp_path / "model.onnx", frame=FRAME)
