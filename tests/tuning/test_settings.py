"""The settings of the sweeper."""

import pytest

from walle.errors import ConfigError
from walle.tuning.settings import WalleOptunaConf, check_settings, seeds_of


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, None), (3, [5, 6, 7]), ([4, 2], [4, 2]), (1, [5])]
)
def test_seeds_are_listed_or_counted(asked, expected):
    assert seeds_of(asked, 5) == expected


@pytest.mark.parametrize(
    "setting",
    [
        *({"seeds": value} for value in (0, True, [], [1, 1], ["a"], 1.5, "1,2")),
        {"n_trials": 0},
        {"n_jobs": 0},
        {"timeout_s": 0},
        {"direction": "up"},
    ],
)
def test_impossible_values_are_refused_with_their_key(setting):
    with pytest.raises(ConfigError, match=f"hydra.sweeper.{next(iter(setting))}="):
        check_settings(WalleOptunaConf(**setting))
