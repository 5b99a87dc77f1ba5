import pytest

from steelyard import DirichletVote, FirstOrder, Fixed, InnerLoop, RelativeShift
from steelyard.errors import UserError
from steelyard.imaging.runs.methods import PAPER, make_probe, make_weighting, trained_domains, votes

TWO = ("flair", "t1")


@pytest.mark.parametrize("name", PAPER)
def test_every_row_of_the_paper_has_a_weighting(name):
    domains = trained_domains(name, ("flair", "t1"))
    weighting = make_weighting(name, domains)
    weighting.start(len(domains))
    assert sum(weighting.weights()) == pytest.approx(1)
    assert votes(name) == (name[:4] in ("Ours", "Simp"))


def test_names_say_what_they_are():
    fixed = make_weighting("F10-T90", TWO)
    fixed.start(2)
    assert isinstance(fixed, Fixed)
    assert fixed.weights() == (0.1, 0.9)
    ours = make_weighting("Ours-G-40", "abc", prior=2.0)
    ours.start(3)
    assert isinstance(ours, DirichletVote)
    assert (ours.choice, ours.window, ours.prior) == ("greedy", 40, (2.0,) * 3)
    shift = make_weighting("Simple-C", TWO)
    assert isinstance(shift, RelativeShift)
    assert (shift.gamma, make_weighting("Simple-G", TWO).gamma) == (0.1, -0.1)
    three = make_weighting("fixed-0.2-0.3-0.5", "abc")
    three.start(3)
    assert three.weights() == (0.2, 0.3, 0.5)
    assert trained_domains("flair-only", ("flair", "t1")) == ("flair",)


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
    probe = make_probe(name, meta_test="eval", every=2)
    assert (type(probe), probe.meta_test, probe.every) == (kind, meta_test, every)
    assert type(make_weighting(name, TWO)) is type(make_weighting(name.partition("+")[0], TWO))
    assert make_probe("F50-T50") is None


@pytest.mark.parametrize(
    ("name", "domains", "message"),
    [
        ("Ours-X-25", TWO, "must be of the form"),
        ("F60-T60", TWO, "sum to 1"),
        ("F50-T50", "abc", "weighs flair and t1, in this order"),
        ("F90-T10", ("t1", "flair"), "weighs flair and t1, in this order"),
        ("Ours-C-0", TWO, "window"),
        ("Simple-C", "abc", "two domains"),
        ("fixed-0.5-0.6", TWO, "sum to 1"),
        ("F50-T50+batch", TWO, "does not vote"),
        ("Ours-C-25+eval+batch", TWO, "must be of the form"),
        ("Ours-C-25+every-0", TWO, "must be of the form"),
        ("Ours-C-25+", TWO, "must be of the form"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name, domains, message):
    with pytest.raises(UserError, match=message):
        make_weighting(name, domains)
    with pytest.raises(UserError, match="there is no t2"):
        trained_domains("t2-only", ("flair", "t1"))
