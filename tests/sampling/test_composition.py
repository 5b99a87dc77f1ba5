"""How many samples of each domain a batch has: sums, minimums and expectations."""

import pytest

from steelyard.sampling.composition import Composer, nearest, quotas, rounded_at_random

OFFSETS = [(number + 0.5) / 10_000 for number in range(10_000)]
SHARES = {
    "unequal": {"a": 0.61, "b": 0.28, "c": 0.11},
    "tiny": {"a": 1.0, "b": 0.01, "c": 1e-9},
    "zero": {"a": 0.0, "b": 3.0, "c": 1.0},
    "huge": {"a": 1e12, "b": 1.0, "c": 2.0},
}


@pytest.mark.parametrize("minimum", [0, 1, 2, 4])
@pytest.mark.parametrize("name", SHARES)
def test_quotas_are_proportional_above_the_minimum(name, minimum):
    shares = SHARES[name]
    expected = quotas(shares, 12, minimum=minimum)
    assert sum(expected.values()) == pytest.approx(12)
    assert min(expected.values()) >= minimum
    free = [domain for domain in shares if expected[domain] > minimum + 1e-9]
    per_share = [expected[domain] / shares[domain] for domain in free]
    assert per_share == pytest.approx([per_share[0]] * len(free)) if free else True
    for domain in shares:  # nobody is raised to the minimum who would have had more
        if domain not in free and per_share:
            assert shares[domain] * per_share[0] <= minimum + 1e-9


@pytest.mark.parametrize("minimum", [0, 2])
@pytest.mark.parametrize("name", SHARES)
def test_the_factor_is_one_on_average_and_the_sum_is_exact(name, minimum):
    composer = Composer(lambda: SHARES[name], size=12, minimum=minimum, fixed=False)
    expected = quotas(SHARES[name], 12, minimum=minimum)
    counts, factors = dict.fromkeys(expected, 0), dict.fromkeys(expected, 0.0)
    for offset in OFFSETS:
        composition = composer(offset)
        assert sum(composition.counts.values()) == 12
        for domain, count in composition.counts.items():
            assert abs(count - expected[domain]) < 1 + 1e-9
            assert count >= minimum
            counts[domain] += count
            factors[domain] += composition.factors.get(domain, 0.0)
            assert (domain in composition.factors) == (count > 0)
    for domain, quota in expected.items():
        assert counts[domain] / len(OFFSETS) == pytest.approx(quota, abs=2e-4)
        if quota > 1e-3:  # rarer domains are not met by these offsets
            assert factors[domain] / len(OFFSETS) == pytest.approx(1, abs=2e-2 if quota < 1 else 1e-3)


def test_fixed_batches_are_composed_alike_and_weights_stay():
    composer = Composer(lambda: {"a": 5.0, "b": 2.0, "c": 1.0}, size=16, minimum=2, fixed=True)
    compositions = [composer(offset) for offset in OFFSETS[::999]]
    assert all(composition == compositions[0] for composition in compositions)
    assert compositions[0].counts == {"a": 10, "b": 4, "c": 2}
    assert compositions[0].factors == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_the_minimum_is_lowered_where_a_batch_has_no_room():
    shares = dict.fromkeys("abcde", 1.0)
    assert set(Composer(lambda: shares, size=7, minimum=3, fixed=True)(0.5).counts.values()) == {1, 2}
    few = Composer(lambda: shares, size=3, minimum=3, fixed=False)
    assert sorted(few(0.5).counts.values()) == [0, 0, 1, 1, 1]


def test_a_fixed_batch_without_a_domain_is_refused():
    with pytest.raises(ValueError, match=r"a batch of 4 samples has none of domain 'b': raise batch_size, or minimum"):
        Composer(lambda: {"a": 1000.0, "b": 1.0}, size=4, minimum=0, fixed=True)(0.0)
    with pytest.raises(ValueError, match="none of domain 'c'"):
        Composer(lambda: {"a": 1.0, "b": 1.0, "c": 1.0}, size=2, minimum=2, fixed=True)(0.0)


def test_rounding_keeps_whole_numbers():
    assert nearest({"a": 3.0, "b": 5.0}) == {"a": 3, "b": 5}
    assert nearest({"a": 1.4, "b": 1.4, "c": 1.2}) == {"a": 2, "b": 1, "c": 1}
    assert rounded_at_random({"a": 3.0, "b": 5.0}, 0.999) == {"a": 3, "b": 5}
