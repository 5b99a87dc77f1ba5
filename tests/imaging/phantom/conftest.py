from typing import NamedTuple

import pytest

from steelyard.imaging.phantom import Cohort, dataset, simulate, write_cohort


class Made(NamedTuple):
    folder: object
    subjects: list


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A cohort of two on disk, and the same two in memory."""
    folder, subjects = tmp_path_factory.mktemp("cohort") / "with a space", []

    def remembered(*arguments):
        subjects.append(simulate(*arguments))
        return subjects[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "simulate", remembered)
        list(write_cohort(folder, Cohort(subjects=2, seed=0)))
    return Made(folder, subjects)


@pytest.fixture(scope="session")
def cohort_folder(made):
    return made.folder


@pytest.fixture(scope="session")
def subject(made):
    return made.subjects[0]
