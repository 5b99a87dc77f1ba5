"""Problems and how they are spoiled."""

import gzip
import sys
from pathlib import Path

import pytest
import torch

from steelyard.errors import UserError
from steelyard.experiments.problems import phantoms
from steelyard.experiments.problems.catalogue import NAMES, problem_named
from steelyard.experiments.problems.classification import accuracy, area_under_curve, mean_error
from steelyard.experiments.problems.curves import Curves
from steelyard.experiments.problems.digits import Digits
from steelyard.experiments.problems.heart import FINDINGS, HOSPITALS
from steelyard.experiments.problems.phantoms import CONTRASTS, SUBJECTS, Phantoms, Slices
from steelyard.experiments.problems.problem import DomainData, Folders, Labelled
from steelyard.experiments.problems.reviews import FOUR_KINDS
from steelyard.experiments.problems.spoiling import (
    NoisyLabels,
    ScaledLosses,
    ShuffledTargets,
    SmallDomain,
    standard_variants,
)
from steelyard.experiments.problems.wine import LABORATORIES, Wine

SPOILED = [variant for variant in Digits().variants if variant != "plain"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with made-up reviews and patients, in the form of the real ones."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("fdu-mtl", "heart"):
        (folder / name).mkdir()
    for kind in FOUR_KINDS:
        for part, count in (("train", 260), ("test", 20)):
            lines = [f"{number % 2}\t{('bad', 'good')[number % 2]} {kind} {number}\n" for number in range(count)]
            (folder / "fdu-mtl" / f"{kind}.{part}.tsv.gz").write_bytes(gzip.compress("".join(lines).encode()))
    for hospital in HOSPITALS:
        lines = [",".join((*FINDINGS, "target"))]
        for number in range(40):
            cells = [str((number + column) % 7) for column in range(len(FINDINGS))]
            cells[number % len(FINDINGS)] = ("?", "")[number % 2]
            lines.append(",".join((*cells, str(number % 3))))
        (folder / "heart" / f"{hospital}.csv").write_text("\n".join(lines))
    return folder


def same(first: Labelled, second: Labelled) -> bool:
    return torch.equal(first.inputs, second.inputs) and torch.equal(first.targets, second.targets)


def toy(domains: int = 4, size: int = 400) -> dict[str, DomainData]:
    part = Labelled(torch.arange(size), torch.arange(size) % 10)
    return {f"domain-{number}": DomainData(train=part, validation=part, test=part) for number in range(domains)}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_seed_gives_the_same_samples_and_another_seed_others():
    first, again, other = Digits().make(3, "noisy"), Digits().make(3, "noisy"), Digits().make(4, "noisy")
    for name in first:
        assert same(first[name].train, again[name].train)
        assert same(first[name].validation, again[name].validation)
        assert not same(first[name].train, other[name].train)


@pytest.mark.parametrize("variant", SPOILED)
def test_test_samples_are_not_spoiled(variant):
    plain, spoiled = Digits().make(5), Digits().make(5, variant)
    rotated = 0
    for name, domain in spoiled.items():
        assert torch.equal(domain.test.targets, plain[name].test.targets)
        if not same(domain.test, plain[name].test):
            assert torch.equal(domain.test.inputs, plain[name].test.inputs.rot90(1, (1, 2)))
            rotated += 1
    assert rotated == (variant == "small")  # the small domain is another one: its images lie on their side
    assert any(domain.fault for domain in spoiled.values())


@pytest.mark.parametrize("variant", SPOILED)
def test_the_seed_chooses_which_domain_is_spoiled(variant):
    spoiled = set()
    for seed in range(12):
        domains = Digits().make(seed, variant)
        largest = max(domains, key=lambda name: (domains[name].fault != "", domains[name].loss_factor))
        if variant == "noisy":
            largest = next(name for name in domains if domains[name].fault == "noise")
        spoiled.add(largest)
    assert spoiled == set(Digits().make(0))


def test_no_image_is_in_two_parts():
    sizes = 0
    for domain in Digits().make(0).values():
        sizes += sum(len(part.targets) for part in (domain.train, domain.validation, domain.test))
        rows = torch.cat([part.inputs for part in (domain.train, domain.validation, domain.test)]).flatten(1)
        assert len(rows.unique(dim=0)) == len(rows)
    assert sizes == 1797


def test_noise_replaces_the_stated_share_of_labels():
    spoiled = NoisyLabels((0.5, 1.0)).apply(toy(), seeded(0))
    wrong = sorted(float((data.train.targets != torch.arange(400) % 10).double().mean()) for data in spoiled.values())
    assert wrong[:2] == [0, 0]
    assert wrong[2] == pytest.approx(0.45, abs=0.04)  # a tenth of the random labels is right by chance
    assert wrong[3] == pytest.approx(0.90, abs=0.04)
    assert sorted(data.fault for data in spoiled.values()) == ["", "", "noise", "noise"]


def test_only_large_factors_are_a_fault_that_an_audit_should_see():
    spoiled = ScaledLosses((30.0, 0.01, 10.0)).apply(toy(), seeded(0)).values()
    faults = {data.loss_factor: data.fault for data in spoiled}
    assert faults == {30.0: "scale", 0.01: "scale", 10.0: "mild", 1.0: ""}


@pytest.mark.parametrize(("size", "left"), [(400, 20), (100, 8)])
def test_a_small_domain_has_a_twentieth_and_at_least_eight(size, left):
    spoiled = SmallDomain().apply(toy(size=size), seeded(0)).values()
    assert sorted(len(data.train.targets) for data in spoiled) == [left, size, size, size]
    assert all(len(data.test.targets) == size for data in spoiled)


@pytest.mark.parametrize("name", ["reviews-4", "heart"])
def test_problems_from_a_folder_fit_their_networks(name, data):
    problem = problem_named(name, Folders(data=data))
    assert len(problem.make(0)) == 4
    for domain in problem.make(0, "noisy").values():
        outputs = problem.build_model()(domain.test.inputs).detach()
        assert outputs.isfinite().all()
        assert 0 <= problem.score(outputs, domain.test.targets) <= 1
        assert 0 < problem.judge(outputs, domain.test.targets) < 1
        assert problem.loss(outputs, domain.test.targets) > 0


def test_missing_findings_are_the_mean_and_said_to_be_missing(data):
    domain = problem_named("heart", Folders(data=data)).make(0)["va"]
    findings, missing = domain.train.inputs.split(len(FINDINGS), dim=1)
    assert (missing.sum(1) == 1).all()
    assert (findings[missing.bool()] == 0).all()


@pytest.mark.parametrize(("name", "file"), [("reviews-16", "apparel.train.tsv.gz"), ("heart", "cleveland.csv")])
def test_absent_data_are_named_in_one_line(name, file, data, tmp_path):
    folder = data if name == "reviews-16" else tmp_path
    with pytest.raises(UserError, match=rf"{file}: there is no such file; the problem needs it\.$"):
        problem_named(name, Folders(data=folder)).make(0)
    with pytest.raises(UserError, match="needs a folder of data; name it with --data"):
        problem_named(name)


def test_damaged_data_are_named_in_one_line(tmp_path):
    (tmp_path / "fdu-mtl").mkdir()
    (tmp_path / "heart").mkdir()
    reviews = tmp_path / "fdu-mtl" / "books.train.tsv.gz"
    reviews.write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"books.train.tsv.gz: is damaged\.$"):
        problem_named("reviews-4", Folders(data=tmp_path)).make(0)
    reviews.write_bytes(gzip.compress(b"good\tnice\n"))
    with pytest.raises(UserError, match=r"every line must be 0 or 1, a tab and a text\.$"):
        problem_named("reviews-4", Folders(data=tmp_path)).make(0)
    (tmp_path / "heart" / "cleveland.csv").write_text("age,target\n60,1\n")
    with pytest.raises(UserError, match="must have one column 'sex'"):
        problem_named("heart", Folders(data=tmp_path)).make(0)


def test_names_that_are_none_are_refused():
    with pytest.raises(
        UserError, match=f"problem must be one of {', '.join(NAMES)}, package.module:Class; got 'letters'"
    ):
        problem_named("letters")
    with pytest.raises(UserError, match="variant of digits must be one of plain, noisy"):
        Digits().make(0, "burnt")


def test_metrics_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    targets = torch.tensor([0, 1, 0, 1])
    assert accuracy(logits, targets) == 0.5
    assert area_under_curve(logits, targets) == 0.5  # of four pairs, (−2, 1) and (−2, −1) are in order
    certain = torch.tensor([[100.0, 0.0], [100.0, 0.0]])
    assert float(mean_error(certain, torch.tensor([0, 1]))) == pytest.approx(0.5)


def test_a_diverged_network_scores_as_a_useless_one():
    logits = torch.full((4, 2), torch.nan)
    targets = torch.tensor([0, 1, 0, 1])
    assert accuracy(logits, targets) == 0
    assert area_under_curve(logits, targets) == 0.5


def test_shuffled_targets_are_those_of_other_samples():
    spoiled = ShuffledTargets((1.0,)).apply(toy(size=10), seeded(0))
    (wrong,) = [data for data in spoiled.values() if data.fault]
    assert (wrong.train.targets != torch.arange(10)).all()  # with ten samples, every target is another
    assert sorted(wrong.train.targets.tolist()) == list(range(10))
    assert torch.equal(wrong.clean_validation.targets, torch.arange(10))
    assert wrong.level == 1


def test_noise_is_in_a_quarter_of_the_domains_and_at_least_in_one():
    for domains, noisy in ((2, 1), (4, 1), (12, 3)):
        spoiled = standard_variants(domains)["noisy"].apply(toy(domains), seeded(0))
        assert sum(data.fault == "noise" for data in spoiled.values()) == noisy
    assert set(standard_variants(4)) == {"plain", "noisy", "random", "times-30", "small"}


def test_each_side_of_a_curve_has_half_of_the_points():
    for number, (name, data) in enumerate(Curves().make(0).items()):
        assert data.test.targets.float().mean() == pytest.approx(0.5, abs=0.06), name
        assert data.train.inputs[:, -3:].argmax(1).unique().tolist() == [number]
        x, y = data.test.inputs[:, 0], data.test.inputs[:, 1]
        sides = {"line": x + y > 0, "circle": x**2 + y**2 > 1.18**2, "chequers": x * y > 0}
        assert torch.equal(data.test.targets, sides[name].long())


def test_each_wine_is_at_one_laboratory():
    domains = Wine().make(0)
    assert tuple(domains) == LABORATORIES
    sizes = 0
    for domain in domains.values():
        parts = (domain.train, domain.validation, domain.test)
        sizes += sum(len(part.targets) for part in parts)
        assert all(len(part.targets.unique()) == 3 for part in parts)
        assert Wine().build_model()(domain.test.inputs).shape[1] == 3
    assert sizes == 178
    assert (domains["sparse"].train.inputs == 0).all(0).sum() == 6
    assert domains["uncalibrated"].train.inputs.mean(0).abs().max() > 0.7


@pytest.fixture
def heads(monkeypatch):
    """Slices of made-up heads: simulated ones take a minute."""
    masks = (torch.rand(SUBJECTS, 3, 16, 16, generator=seeded(0)) > 0.8).float()
    images = torch.stack([masks, -masks], dim=1) + torch.arange(SUBJECTS)[:, None, None, None, None]
    monkeypatch.setattr(phantoms, "_simulate_cohort", lambda: Slices(images, masks))
    phantoms._cohort.cache_clear()
    yield
    phantoms._cohort.cache_clear()


@pytest.mark.usefixtures("heads")
def test_subjects_of_phantoms_are_divided_and_kept(tmp_path, monkeypatch):
    first = Phantoms(tmp_path).make(0)
    assert tuple(first) == CONTRASTS
    parts = [first["t1"].train, first["t1"].validation, first["t1"].test]
    assert [len(part.targets) for part in parts] == [18, 6, 12]
    subjects = [set(part.inputs.amax((1, 2, 3)).round().tolist()) for part in parts]
    assert len(set.union(*subjects)) == sum(map(len, subjects)) == SUBJECTS
    phantoms._cohort.cache_clear()
    monkeypatch.setattr(phantoms, "_simulate_cohort", None)
    assert same(Phantoms(tmp_path).make(0)["flair"].test, first["flair"].test)
    phantoms._cohort.cache_clear()
    (kept_file,) = tmp_path.iterdir()
    kept_file.write_bytes(b"no slices")
    with pytest.raises(UserError, match="is damaged; remove it, and it is made again"):
        Phantoms(tmp_path).make(0)


@pytest.mark.usefixtures("heads")
def test_the_dice_of_phantoms_by_hand():
    problem = Phantoms()
    logits = torch.tensor([[2.0, -1.0, 3.0, -4.0]])
    masks = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert problem.score(logits, masks) == 0.5
    assert problem.score(torch.full((1, 4), torch.nan), masks) == 0
    outputs = problem.build_model()(problem.make(0, "noisy")["flair"].test.inputs)
    assert outputs.shape == (12, 1, 16, 16)
    assert problem.loss(logits, masks) > problem.loss(20 * (masks - 0.5), masks)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.at_all:Thing", "problem nowhere.at_all:Thing: cannot be imported, No module named 'nowhere'"),
        (":Thing", "problem :Thing: cannot be imported"),
        ("math:Thing", "problem math:Thing: math has no Thing"),
        ("fractions:Fraction", "problem fractions:Fraction: must be a subclass of Problem; got Fraction"),
        ("torch.nn:Linear", "problem torch.nn:Linear: cannot be made, .* missing 2 required"),
    ],
)
def test_paths_that_lead_to_no_problem_are_refused_in_one_line(path, message):
    with pytest.raises(UserError, match=message):
        problem_named(path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("undefined_name", "cannot be imported, name 'undefined_name' is not defined"),
        ("def broken(:", "cannot be imported, invalid syntax"),
        ("import math\nmath.nothing", "cannot be imported, module 'math' has no attribute 'nothing'"),
        (
            "from steelyard.experiments.problems.digits import Digits\nMine = lambda: Digits(name=None)",
            "must have the attribute name",
        ),
    ],
)
def test_a_problem_of_ones_own_with_a_mistake_is_refused_in_one_line(code, message, tmp_path, monkeypatch):
    (tmp_path / "own_mistake.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_mistake", raising=False)
    with pytest.raises(UserError, match=message):
        problem_named("own_mistake:Mine")


@pytest.mark.parametrize("name", ["site=left", "a;b"])
def test_names_of_domains_that_would_break_the_table_are_refused(name, monkeypatch):
    drawn = Digits().draw(torch.Generator().manual_seed(0))
    monkeypatch.setattr(Digits, "draw", lambda *_: {name: drawn["left"], "b": drawn["right"]})
    with pytest.raises(UserError, match="a domain must have a name without =;"):
        Digits().make(0)
