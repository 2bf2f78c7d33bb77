import pytest

from walle.errors import ConfigError
from walle.sampling import slots


class Shape:
    bytes = 3 * 10**9


def test_slots_that_memory_cannot_hold_are_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(slots, "memory_bytes", lambda: 12 * 10**9)
    slots.check_memory([Shape, Shape], 2, batch_size=100)
    with pytest.raises(ConfigError) as refused:
        slots.check_memory([Shape, Shape], 3, batch_size=100)
    assert str(refused.value) == (
        "batch_size=100 with sampler.slots=3 needs 18 GB of shared memory, and this machine or its "
        "container has 12; use a smaller batch_size, or a smaller sampler.max_lag"
    )
