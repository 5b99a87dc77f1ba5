import pytest

from steelyard import DirichletVote, FirstOrder, Fixed, InnerLoop, RelativeShift
from steelyard.errors import UserError
from steelyard.imaging.runs.method import PAPER, Method
from steelyard.imaging.train.weighing import make_probe, make_weighting

TWO = ("flair", "t1")


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


@pytest.mark.parametrize("name", ["group-dro", "dwa", "uw", "famo", "equal"])
def test_other_methods_weigh_any_number_of_domains(name):
    assert weighting_of(name, ("a", "b", "c")).domains == 3
    assert make_probe(Method.parse(name)) is None


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
    ],
)
def test_a_plus_says_how_votes_are_asked_for(name, kind, meta_test, every):
    probe = make_probe(Method.parse(name), meta_test="eval", every=2)
    assert (type(probe), probe.meta_test, probe.every) == (kind, meta_test, every)
    assert type(weighting_of(name)) is type(weighting_of(name.partition("+")[0]))


@pytest.mark.parametrize(("name", "fault"), [("shift-greedy", "two domains"), ("fixed-20-80", "there are 3 domains")])
def test_a_method_that_does_not_fit_the_domains_is_refused(name, fault):
    with pytest.raises(UserError, match=fault):
        make_weighting(Method.parse(name), ("a", "b", "c"))
