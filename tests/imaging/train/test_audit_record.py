import json
from math import nan

import pytest

from audits import audit_of, harmful
from steelyard.errors import UserError
from steelyard.imaging.train.audit_record import describe_audit, parse_audit

AUDIT = audit_of(("flair", "t1"), [[-1e-3, nan], [2e-4, -1e-3]], flags=[harmful("t1")])


def test_what_json_holds_is_the_audit_and_nan_is_null():
    content = describe_audit(AUDIT)
    text = json.dumps(content, allow_nan=False)
    assert content["transfer"] == [[-1e-3, None], [2e-4, -1e-3]]
    restored = parse_audit(json.loads(text))
    assert restored.flags == AUDIT.flags
    assert str(restored) == str(AUDIT)
    assert describe_audit(restored) == content
    assert describe_audit(parse_audit(AUDIT.as_dict())) == content


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("domains",), 3, "domains must be a list; got 3"),
        (("domains",), [], "domains must have 1 to 1000 entries; it has 0"),
        (("domains", 0), "flair", "domains must be objects"),
        (("domains", 0, "name"), "a\nb", "a domain must have a name of 1 to 255 printable characters"),
        (("domains", 0, "votes"), 1.5, "votes of flair must be a whole number"),
        (("domains", 0, "share"), 1.5, "share of flair must be a number within 0 to 1; got 1.5"),
        (("domains", 1, "own"), "x", "own of t1 must be a number"),
        (("domains", 1, "own"), 1e308, "own of t1 must be a number"),
        (("transfer",), [[1, 2]], "transfer must have 2 rows; it has 1"),
        (("transfer", 1), [1, 2, 3], "transfer must have rows of 2 numbers"),
        (("standard_error", 1, 1), True, "standard_error must be a number"),
        (("flags",), None, "flags must be a list"),
        (("flags", 0), [], "flags must be objects"),
        (("flags", 0, "kind"), "sad", "the kind of a flag must be one of noisy labels"),
        (("flags", 0, "evidence"), "a" * 2000, "the evidence of a flag must be at most 1000 printable characters"),
        (("flags", 0, "evidence"), 1, "the evidence of a flag must be a str"),
    ],
)
def test_an_audit_that_no_run_writes_is_refused_by_name(path, value, fault):
    content = json.loads(json.dumps(describe_audit(AUDIT)))
    *parents, last = path
    entry = content
    for step in parents:
        entry = entry[step]
    entry[last] = value
    with pytest.raises(UserError, match=fault) as caught:
        parse_audit(content)
    assert len(str(caught.value)) < 200


def test_a_number_that_is_missing_is_refused():
    content = describe_audit(AUDIT)
    del content["domains"][0]["presence"]
    with pytest.raises(UserError, match="presence of flair must be a number"):
        parse_audit(content)
