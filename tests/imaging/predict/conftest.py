import numpy as np
import pytest

import heads
import networks_by_hand


@pytest.fixture(autouse=True)
def _quick(request, monkeypatch):
    """Ventricles are searched for where the search is tested, and pictures drawn where they are looked at."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("os.cpu_count", lambda: 1)
        monkeypatch.setattr("steelyard.imaging.predict.pipeline.find_ventricles", dark_middle)
    if "pictures" not in request.fixturenames and request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("steelyard.imaging.predict.cohort.draw_mosaic", lambda prediction, row: b"picture")


def dark_middle(scan, brain):
    inside = np.zeros_like(brain.voxels)
    inside[24:36, 28:46, 20:28] = True
    return brain.with_voxels(inside & (scan.voxels < 140))


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return networks_by_hand.write_run(tmp_path_factory.mktemp("model") / "run")


@pytest.fixture
def stripped(tmp_path):
    """Writes a stripped head whose lesion is brighter than 195, and nothing else is."""

    def write(name, *, size=1.0, affine=heads.AFFINE, folder=tmp_path / "in"):
        labels = heads.tissue(size=size)
        scan = heads.scan("flair", labels, noise=2.0)
        voxels = np.where(heads.brain(labels).voxels, scan.voxels, 0.0).astype(np.float32)
        return heads.save(folder / name, heads.Volume(voxels, affine))

    return write


@pytest.fixture
def pictures():
    """Ask for this and pictures are drawn."""
