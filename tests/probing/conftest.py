"""What tests of probes share."""

import pytest

from steelyard.probing.layered_pass import LayeredPass


@pytest.fixture
def layered(monkeypatch):
    """How each attempt to read gradients off went."""
    record, run = [], LayeredPass.run
    monkeypatch.setattr(LayeredPass, "run", lambda self, **k: record.append(run(self, **k)) or record[-1])
    return record
