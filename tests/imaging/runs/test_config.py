"""The settings of a run, with those that nobody can have meant, and its split of the subjects."""

import json
from dataclasses import replace

import pytest

from steelyard.errors import UserError
from steelyard.experiments.configs import smoke
from steelyard.experiments.grids import smoke as smoke_grid
from steelyard.imaging.runs.config import TrainingConfig, with_settings
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.split import Split, split_subjects

WHOLE = ("width", "every", "batch_size", "epochs", "patience", "stop_after", "seed", "slices.count", "slices.first")
NUMBERS = ("prior", "learning_rate", "momentum", "weight_decay", "slices.height", "slices.frame.pixel_mm")
TURNS = ("augmentation.rotation", "augmentation.shear", "augmentation.gain", "augmentation.offset")
NONSENSE = ("true", '"x"', "[]", "{}", "NaN", "Infinity", "-1", "1e308", "9" * 400, "9" * 5000, "[" * 100_000)


@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize("name", [*WHOLE, *NUMBERS, *TURNS])
def test_no_number_is_anything_else(name, value):
    with pytest.raises(UserError, match=rf"^{name.rpartition('.')[2]} must be a") as caught:
        with_settings(smoke(), [f"{name}={value}"])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_is_no_fraction(name):
    with pytest.raises(UserError, match=r"must be a whole number within \d+ to \d+; got 2\.5\.$"):
        with_settings(smoke(), [f"{name}=2.5"])


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("augmentation.scale=[1]", "scale must be two positive numbers"),
        ("augmentation.scale=[2,1]", "scale must be two positive numbers, the smaller first"),
        ("augmentation.scale=[1,NaN]", "scale must be a number within 0.01 to 100"),
        ("augmentation.scale=3", "scale must be two positive numbers"),
        ("augmentation.flip=1", "flip must be a bool"),
        ("augmentation=true", "Augmentation must be an object; got True"),
        ("slices.frame.shape=[true,true]", "shape must be two whole numbers"),
        ("slices.frame=3", "Frame must be an object; got 3"),
        ("slices=null", "slices must be a SliceChoice; got None"),
        ("mask_shift=3", "MaskShift must be an object; got 3"),
        ('mask_shift={"domains": ["flair"], "pixels": 0}', "pixels must be a whole number within 1 to 1024; got 0"),
        ('mask_shift={"domains": [], "pixels": 8}', "domains of mask_shift must be names, at least one"),
        ('mask_shift={"domains": "t1", "pixels": 8}', "domains of mask_shift must be names, at least one"),
        ('mask_shift={"domains": ["t2"], "pixels": 8}', "mask_shift: the domains are flair, t1; there is no t2"),
        ('mask_shift={"domains": ["t1"], "pixels": 8, "turn": 1}', "MaskShift has no setting 'turn'"),
        ("mixing=[]", r"mixing must be one of random, balanced; got "),
        ('domains=["flair", ""]', "domains must be names of 1 to 255 printable characters"),
        ('domains=["flair", "a\\nb"]', "domains must be names of 1 to 255 printable characters"),
        ('domains=[["flair"], ["t1"]]', "domains must be names"),
        ("domains={}", "domains must be distinct names"),
        ("nosuch=1", "--set takes NAME=VALUE"),
        ("model=3", "model must be a str"),
    ],
)
def test_other_settings_are_refused_by_name(setting, fault):
    with pytest.raises(UserError, match=fault):
        with_settings(smoke(), [setting])


def test_a_config_that_is_nested_too_deeply_is_text_to_the_command_line():
    with pytest.raises(UserError, match="options must be a dict"):
        with_settings(smoke(), ["options=" + '{"a":' * 500 + "1" + "}" * 500])


def test_what_is_written_comes_back():
    config = with_settings(smoke(), ["slices.count=null", "slices.first=0", "augmentation=null", "prior=1.5"])
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_a_grid_of_endless_folds_is_refused():
    with pytest.raises(UserError, match="folds must be at most 1000; got 1000000000"):
        replace(smoke_grid(), folds=10**9)


def test_a_method_is_given_by_any_of_its_names_and_stored_by_one():
    config = TrainingConfig(method="Ours-C-25")
    assert config.method == Method.parse("conservative-25")
    assert config.as_dict()["method"] == "conservative-25"
    assert TrainingConfig().method.name == "equal"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (["method=F90-T10", 'domains=["t1","flair"]'], "weighs flair and t1, in this order"),
        (['domains=["t1","flair"]', "method=F90-T10"], "weighs flair and t1, in this order"),
        (["method=greedy-25", "prior=1"], "method greedy-25: prior must be above 1"),
        (["method=fixed-20-80", 'domains=["a","b","c"]'], "needs 2 domains; there are 3"),
    ],
)
def test_a_method_must_fit_the_other_settings_in_any_order(settings, fault):
    with pytest.raises(UserError, match=fault):
        with_settings(smoke(), settings)


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
