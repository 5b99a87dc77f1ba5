import pytest

from steelyard.imaging.phantom import SCANNERS, Cohort, simulate, write_cohort

SUBJECTS = 2


@pytest.fixture(scope="session")
def cohort_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort") / "with a space"
    list(write_cohort(folder, Cohort(subjects=SUBJECTS, seed=0)))
    return folder


@pytest.fixture(scope="session")
def subject():
    return simulate(0, 1, SCANNERS["standard-3t"])
