from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from walle.launcher.planning import quoted


@pytest.mark.parametrize(
    "directory", ["multirun/2026-01-01/12-00-00", "/a b/c", "it's=1", "a,b", "été", "x#1", "[0]"]
)
def test_a_directory_is_quoted_for_hydra(directory):
    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(directory)}"])
    assert not override.is_sweep_override()
    assert override.value() == directory
