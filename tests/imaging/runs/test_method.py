from typing import get_args

import pytest
import torch

from steelyard import DirichletVote, FirstOrder, Fixed, Gramian, InnerLoop, Measurement, RelativeShift
from steelyard.errors import UserError
from steelyard.imaging.runs.method import PAPER, Method
from steelyard.imaging.runs.method_kinds import FORMS, PlainKind
from steelyard.imaging.train.method_parts import make_probe, make_weighting

TWO = ("flair", "t1")

ALIASES = [
    ("F50-T50", "equal"),
    ("F10-T90", "fixed-10-90"),
    ("fixed-0.1-0.9", "fixed-10-90"),
    ("fixed-0.12345678-0.87654322", "fixed-12.345678-87.654322"),
    ("fixed-33.3-33.3-33.4", "fixed-33.3-33.3-33.4"),
    ("Ours-G-25", "greedy-25"),
    ("Ours-C-100", "conservative-100"),
    ("Simple-G", "shift-greedy"),
    ("Simple-C", "shift-conservative"),
    ("GroupDRO", "group-dro"),
    ("flair-only", "flair-only"),
    ("Ours-C-25+first-order+every-4", "conservative-25+first-order+every-4"),
]


@pytest.mark.parametrize(("alias", "name"), ALIASES)
def test_the_papers_names_are_aliases(alias, name):
    assert Method.parse(alias).name == name
    assert Method.parse(name) == Method.parse(alias)


@pytest.mark.parametrize("name", ["F50-T50", "F10-T90", "Simple-C", "Ours-G-100", "Ours-C-25+batch", "t1-only"])
def test_the_papers_tables_keep_the_papers_names(name):
    assert Method.parse(name).paper_name == name


def test_names_say_what_a_method_is():
    assert Method.parse("greedy-40").window == 40
    assert Method.parse("fixed-20-30-50").percentages == (20, 30, 50)
    assert Method.parse("t1-only").trained_domains(TWO) == ("t1",)
    assert Method.parse("equal").trained_domains(TWO) == TWO
    kinds = [(method.is_fixed, method.is_single, method.is_voting) for method in PAPER]
    assert kinds == [(True, False, False)] * 3 + [(False, False, True)] * 6 + [(False, True, False)] * 2
    assert all(method.description for method in PAPER)


def test_methods_are_sorted_as_in_the_paper_and_others_after_them():
    names = ["mine", "greedy-7", "conservative-25", "equal", "greedy-100"]
    ordered = sorted((Method.parse_or_unknown(name) for name in names), key=lambda method: method.order)
    assert [method.name for method in ordered] == ["equal", "greedy-100", "conservative-25", "greedy-7", "mine"]


def test_modifiers_say_how_votes_are_taken():
    method = Method.parse("greedy-25+every-4+first-order+batch")
    assert (method.first_order, method.meta_test, method.every) == (True, "batch", 4)
    assert method.voting_on_each_step.name == "greedy-25+first-order+batch"


@pytest.mark.parametrize(
    ("name", "domains", "message"),
    [
        ("Ours-X-25", TWO, "must be of the form"),
        ("F60-T60", TWO, "sum to 100"),
        ("F50-T50", "abc", "weighs flair and t1, in this order"),
        ("F90-T10", ("t1", "flair"), "weighs flair and t1, in this order"),
        ("greedy-0", TWO, "window"),
        ("Simple-C", "abc", "two domains"),
        ("fixed-0.5-0.6", TWO, "sum to 100"),
        ("fixed-20-80", "abc", "needs 2 domains; there are 3"),
        ("equal+batch", TWO, "does not vote"),
        ("greedy-25+eval+batch", TWO, "must be of the form"),
        ("greedy-25+every-0", TWO, "must be of the form"),
        ("greedy-25+", TWO, "must be of the form"),
        ("t2-only", TWO, "there is no t2"),
        ("Ours-C-9999999999999999999999999", TWO, "must be of the form"),
        ("F50-T50+batch", TWO, "does not vote"),
        ("dual-balancing+first-order", TWO, "does not vote"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name, domains, message):
    with pytest.raises(UserError, match=message):
        Method.parse(name, domains)
    assert Method.parse_or_unknown("mine").name == "mine"


def weighting_of(name, domains=TWO, **settings):
    weighting = make_weighting(Method.parse(name, domains), domains, **settings)
    weighting.start(len(domains))
    return weighting


@pytest.mark.parametrize("method", PAPER, ids=lambda method: method.name)
def test_every_row_of_the_paper_has_a_weighting(method):
    domains = method.trained_domains(TWO)
    weighting = make_weighting(method, domains)
    weighting.start(len(domains))
    assert sum(weighting.weights()) == pytest.approx(1)
    assert (make_probe(method) is not None) == (method.paper_name[:4] in ("Ours", "Simp"))


@pytest.mark.parametrize("name", get_args(PlainKind))
def test_every_plain_method_has_a_weighting_for_any_number_of_domains(name):
    assert weighting_of(name, ("a", "b", "c")).domains == 3
    probe_kinds = {"evidence": InnerLoop, "dual-balancing": Gramian}
    assert type(make_probe(Method.parse(name))) is probe_kinds.get(name, type(None))
    assert Method.parse(name).description
    assert f"{name}," in FORMS


def test_the_log_loss_takes_the_lowest_loss_that_there_is():
    weighting = weighting_of("log-loss")
    weighting.observe(Measurement.of(torch.tensor([-1.0, 0.5])))  # cross-entropy minus Dice is −1 at best
    assert weighting.weights()[0] > weighting.weights()[1] > 0


def test_names_say_what_they_are():
    fixed = weighting_of("F10-T90")
    assert isinstance(fixed, Fixed)
    assert fixed.weights() == (0.1, 0.9)
    greedy = weighting_of("Ours-G-40", "abc", prior=2.0)
    assert isinstance(greedy, DirichletVote)
    assert (greedy.choice, greedy.window, greedy.prior) == ("greedy", 40, (2.0,) * 3)
    shift = weighting_of("Simple-C")
    assert isinstance(shift, RelativeShift)
    assert (shift.gamma, weighting_of("Simple-G").gamma) == (0.1, -0.1)
    assert weighting_of("fixed-0.2-0.3-0.5", "abc").weights() == (0.2, 0.3, 0.5)


@pytest.mark.parametrize(
    ("name", "kind", "meta_test", "every"),
    [
        ("Ours-C-25", InnerLoop, "eval", 2),
        ("Ours-C-25+batch", InnerLoop, "batch", 2),
        ("Ours-G-100+every-8", InnerLoop, "eval", 8),
        ("Simple-C+every-4+first-order", FirstOrder, "eval", 4),
        ("evidence", InnerLoop, "step", 2),
        ("evidence+every-4", InnerLoop, "step", 4),
        ("evidence+eval", InnerLoop, "eval", 2),
        ("evidence+batch", InnerLoop, "batch", 2),
        ("evidence+first-order", FirstOrder, "step", 2),
    ],
)
def test_a_plus_says_how_votes_are_asked_for(name, kind, meta_test, every):
    probe = make_probe(Method.parse(name), meta_test="eval", every=2)
    assert (type(probe), probe.meta_test, probe.every) == (kind, meta_test, every)
    assert type(weighting_of(name)) is type(weighting_of(name.partition("+")[0]))


def test_evidence_is_judged_on_batch_statistics_where_the_config_says_so():
    assert make_probe(Method.parse("evidence"), meta_test="batch").meta_test == "batch"


def test_the_gramian_is_measured_as_often_as_the_config_says():
    assert make_probe(Method.parse("dual-balancing"), every=3).every == 3


@pytest.mark.parametrize(
    ("name", "fault"), [("shift-greedy", "two domains"), ("fixed-20-80", "needs 2 domains; there are 3")]
)
def test_a_method_that_does_not_fit_the_domains_is_refused(name, fault):
    with pytest.raises(UserError, match=fault):
        make_weighting(Method.parse(name), ("a", "b", "c"))
