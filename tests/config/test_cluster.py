"""What cannot work with sampler=ray is refused in one line, before anything starts."""

import importlib.util

import pytest

from walle.config import checks, compose
from walle.errors import ConfigError

RAY = "sampler=ray"


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: name)


def test_without_ray_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refusal:
        compose([RAY])
    assert "pip install 'walle[ray]'" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("sampler.address=ray://head:10001", "sampler.address=auto"),
        ("sampler.n=4", "sampler.per_node=4"),
        ("sampler.max_lag=null", "sampler.max_lag=0, 1 or more"),
        ("sampler.slots=3", "drop it"),
        ("trace=true", "sampler=process"),
        ("sampler.mismatch=maybe", "error, warn"),
        ("sampler.per_node=0", "must be positive"),
        ("sampler.lanes=3", "batch_size"),
    ],
)
def test_what_does_not_fit_a_cluster_is_refused_with_the_cure(override, why):
    with pytest.raises(ConfigError, match=why) as refusal:
        compose([RAY, override])
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("lag", "slots"), [(0, 1), (1, 2)])
def test_the_nodes_decide_on_the_number_of_samplers(lag, slots):
    config = compose([RAY, f"sampler.max_lag={lag}", "batch_size=2048"])
    assert (config.sampler.n, config.n) == (None, 0)
    assert (config.lanes, config.slots) == (64, slots)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_ray_is_not_imported_for_other_samplers(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; from walle.config import compose; import walle.training;"
        "compose(['sampler=ray']); assert 'ray' not in sys.modules"
    )
    assert importlib.util.find_spec("walle")
    subprocess.run([sys.executable, "-c", code], check=True)
