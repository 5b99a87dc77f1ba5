import pytest
import SimpleITK as sitk

import heads
from steelyard.experiments.configs import smoke
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.train.data import load_labelled


@pytest.fixture(autouse=True)
def _one_itk_thread():
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    """Six labelled heads, one of them without T1."""
    root = tmp_path_factory.mktemp("cohort")
    for number in range(6):
        heads.write_subject(root, f"{number}", seed=number, contrasts=("flair",) if number == 5 else ("flair", "t1"))
    return root


@pytest.fixture(scope="session")
def labelled(cohort):
    config = smoke()
    return load_labelled(read_prepared(cohort), config.slices, domains=config.domains)
