import gzip

import nibabel
import numpy as np

from steelyard.imaging.phantom.storage import write_fixed_point, write_nifti

AFFINE = np.diag([1.0, 1.0, 3.0, 1.0])


def test_the_same_voxels_are_the_same_bytes(tmp_path):
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for name in ("a.nii.gz", "b.nii.gz"):
        write_nifti(tmp_path / name, voxels, AFFINE)
    content = (tmp_path / "a.nii.gz").read_bytes()
    assert content == (tmp_path / "b.nii.gz").read_bytes()
    assert content[4:8] == bytes(4)  # no time stamp
    assert len(gzip.decompress(content)) == 352 + 48
    np.testing.assert_array_equal(nibabel.load(tmp_path / "a.nii.gz").dataobj, voxels)


def test_fixed_point_keeps_values_to_half_a_step(tmp_path):
    values = np.random.default_rng(0).uniform(0.5, 2, size=(4, 4, 4))
    write_fixed_point(tmp_path / "a.nii.gz", values, AFFINE, step=1e-3)
    np.testing.assert_allclose(nibabel.load(tmp_path / "a.nii.gz").get_fdata(), values, atol=5.1e-4)
