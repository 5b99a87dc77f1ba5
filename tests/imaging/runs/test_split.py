import pytest

from steelyard.errors import UserError
from steelyard.imaging.runs.split import Split, split_subjects

NAMES = [f"sub-{number:02d}" for number in range(20)]


def test_the_papers_split_has_twelve_four_and_four():
    splits = [split_subjects(NAMES, folds=5, fold=fold) for fold in range(5)]
    assert all((len(s.train), len(s.validate), len(s.test)) == (12, 4, 4) for s in splits)
    assert sorted(name for s in splits for name in s.test) == NAMES
    for split in splits:
        assert sorted((*split.train, *split.validate, *split.test)) == NAMES


def test_folds_depend_on_the_seed_and_not_on_the_order():
    first = split_subjects(NAMES, seed=1)
    assert split_subjects(NAMES[::-1], seed=1) == first
    assert split_subjects(NAMES, seed=2).test != first.test


def test_fewer_may_validate_and_one_fold_tests_on_none():
    split = split_subjects(NAMES[:9], folds=3, validate=1)
    assert (len(split.train), len(split.validate), len(split.test)) == (5, 1, 3)
    everyone = split_subjects(NAMES[:4], folds=1, validate=1)
    assert (len(everyone.train), everyone.test) == (3, ())
    assert (everyone.part_of(everyone.train[0]), everyone.part_of("sub-99")) == ("train", None)


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (NAMES[:1], {}, "at least 2 subjects are needed to train and test; there are 1"),
        (NAMES[:3], {"folds": 5}, "5 folds need at least as many subjects with lesion masks; there are 3"),
        (NAMES, {"fold": 5}, "fold must lie within 0 to 4"),
        (NAMES[:2], {"folds": 2}, "leave none to train on"),
        (NAMES, {"folds": 0}, "fold must lie"),
    ],
)
def test_what_cannot_be_dealt_is_refused(names, settings, message):
    with pytest.raises(UserError, match=message):
        split_subjects(names, **settings)


def test_nobody_is_on_two_sides():
    with pytest.raises(UserError, match="a is on two sides"):
        Split(train=("a", "b"), test=("a",))
