from math import cos, exp, log, radians, sin

import pytest

from steelyard.imaging.phantom.signal import (
    RELAXATION,
    TISSUES,
    Flair,
    Mprage,
    Relaxation,
    SpinEcho,
    tissue_signals,
    with_lesion_contrast,
)


def simulated_mprage(sequence, tissue):
    """Follow the longitudinal magnetisation pulse by pulse until nothing changes from one inversion to the next."""
    recover = lambda m, time: 1 + (m - 1) * exp(-time / tissue.t1)  # noqa: E731
    half, alpha = sequence.train_length // 2, radians(sequence.flip_angle)
    m = 1.0
    for _ in range(12):
        m = recover(-m, sequence.inversion_time - half * sequence.echo_spacing)
        for pulse in range(sequence.train_length):
            if pulse == half:
                centre = m
            m = recover(m * cos(alpha), sequence.echo_spacing)
        rest = sequence.repetition_time - sequence.inversion_time - half * sequence.echo_spacing
        m = recover(m, rest)
    return tissue.density * sin(alpha) * centre * exp(-sequence.echo_time / tissue.t2)


@pytest.mark.parametrize("tissue", TISSUES)
def test_mprage_agrees_with_a_simulation_pulse_by_pulse(tissue):
    relaxation = RELAXATION[3.0][tissue]
    assert Mprage().signal(relaxation) == pytest.approx(simulated_mprage(Mprage(), relaxation), rel=0.01, abs=2e-4)


def test_flair_nulls_a_tissue_at_its_inversion_time():
    fluid = RELAXATION[3.0]["csf"]
    null = fluid.t1 * (log(2) - log(1 + exp(-9160 / fluid.t1)))
    assert Flair(inversion_time=null).signal(fluid) == pytest.approx(0, abs=1e-12)
    assert 2300 < null < 2600  # the inversion time that protocols use


def test_flair_by_hand():
    tissue = Relaxation(density=0.5, t1=1000, t2=100)
    expected = 0.5 * (1 - 2 * exp(-2.5) + exp(-9.16)) * exp(-0.9) * sin(radians(75)) ** 2
    assert Flair().signal(tissue) == pytest.approx(expected)


def test_spin_echo_by_hand():
    tissue = Relaxation(density=0.5, t1=600, t2=12)
    assert SpinEcho().signal(tissue) == pytest.approx(0.5 * (1 - exp(-1)) * exp(-1))


@pytest.mark.parametrize("field", RELAXATION)
def test_contrasts_are_those_radiologists_know(field):
    t1w = dict(zip(TISSUES, tissue_signals(Mprage(), RELAXATION[field]), strict=True))
    flair = dict(zip(TISSUES, tissue_signals(Flair(), RELAXATION[field]), strict=True))
    assert t1w["csf"] < 0.4 < t1w["grey"] < t1w["lesion"] < t1w["white"] == 1 < t1w["fat"]
    assert t1w["csf"] < t1w["hole"] < t1w["grey"]  # tissue lost is dark on T1w, and still bright on FLAIR
    assert 1.4 < flair["hole"] < flair["lesion"]
    assert flair["csf"] < 0.2 < flair["white"] == 1 < flair["grey"] < 1.4 < flair["lesion"] < 2.2


def test_lesion_contrast_moves_t2_from_white_matter():
    table = RELAXATION[3.0]
    assert with_lesion_contrast(table, 1.0) == table
    for tissue in ("lesion", "hole"):
        none = with_lesion_contrast(table, 0.0)[tissue]
        assert (none.t1, none.t2) == (table[tissue].t1, table["white"].t2)


def test_impossible_times_are_refused():
    with pytest.raises(ValueError, match="T1 and T2 must be positive"):
        Relaxation(density=1.0, t1=0.0, t2=1.0)
    with pytest.raises(ValueError, match=r"pulse train must fit around TI within TR; got TI 900 ms and TR 1000 ms"):
        Mprage(repetition_time=1000.0)
