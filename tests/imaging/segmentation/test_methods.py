import pytest

from steelyard import DirichletVote, Fixed, RelativeShift
from steelyard.errors import UserError
from steelyard.imaging.segmentation.methods import PAPER, make_weighting, trained_domains, votes

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
    ("name", "domains", "message"),
    [
        ("Ours-X-25", TWO, "must be of the form"),
        ("F60-T60", TWO, "sum to 1"),
        ("F50-T50", "abc", "weighs flair and t1, in this order"),
        ("F90-T10", ("t1", "flair"), "weighs flair and t1, in this order"),
        ("Ours-C-0", TWO, "window"),
        ("Simple-C", "abc", "two domains"),
        ("fixed-0.5-0.6", TWO, "sum to 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name, domains, message):
    with pytest.raises(UserError, match=message):
        make_weighting(name, domains)
    with pytest.raises(UserError, match="there is no t2"):
        trained_domains("t2-only", ("flair", "t1"))
