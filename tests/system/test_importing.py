"""What `module:Name` means, and one clear error for each way in which it can be wrong."""

import pytest

from walle.errors import ConfigError
from walle.system.importing import imported, require_picklable


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's own; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    count = iter(range(9))

    def _module(text):
        name = f"own_{tmp_path.name.replace('-', '_')}_{next(count)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return _module


def test_it_is_the_object_of_that_name(module):
    name = module("class Mine:\n    def act(self): pass\n")
    assert imported("algo.name", f"{name}:Mine", ("act",)).__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        (
            "",
            "nowhere_at_all:X",
            "there is no module nowhere_at_all in this directory, on PYTHONPATH",
        ),
        ("", "nowhere_at_all.deeper:X", "there is no module nowhere_at_all in this directory"),
        ("class Mine: pass", "{}:Mien", r"has no Mien; did you mean 'Mine'\?"),
        ("class Mine: pass", "{}:Mine", "Mine lacks act, learn; look there"),
        ("import not_installed_here", "{}:Mine", "importing own_.* needs not_installed_here"),
        ("1 / 0", "{}:Mine", r"cannot be imported: ZeroDivisionError: .*line 1\)"),
        ("", ":Mine", "must be module:Name"),
        ("", "module:", "must be module:Name"),
        ("", "./module.py:Mine", r"must be module:Name, .* \(without .py and directories\)"),
        ("", "__main__:Mine", "where other processes can import the module"),
    ],
)
def test_a_wrong_name_has_one_clear_error(text, path, said, module):
    path = path.format(module(text))
    with pytest.raises(ConfigError, match=said) as refused:
        imported("algo.name", path, ("act", "learn"), "look there")
    assert str(refused.value).startswith(f"algo.name={path!r}")
    assert "\n" not in str(refused.value)


def test_what_no_worker_can_get_is_refused():
    require_picklable("net.name", "m:X", ConfigError)
    with pytest.raises(ConfigError, match=r"^net.name='m:X' cannot be sent to worker processes"):
        require_picklable("net.name", "m:X", lambda: 0)
