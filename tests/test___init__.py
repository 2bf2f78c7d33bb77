"""The names in `import walle`."""

import subprocess
import sys

import pytest

import walle

QUICK = """
import sys
import walle
assert {"torch", "numpy", "hydra", "gymnasium"}.isdisjoint(sys.modules), sorted(sys.modules)
"""


def test_importing_walle_imports_nothing_else():
    subprocess.run([sys.executable, "-c", QUICK], check=True)


@pytest.mark.parametrize("name", walle.__all__)
def test_every_public_name_exists_and_says_what_it_is(name):
    found = getattr(walle, name)
    assert name == "__version__" or len(found.__doc__) > 40


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = walle.trian
    assert not hasattr(walle, "trian")


SCRIPT = """
import walle
{guard}
    config = walle.compose(["env=cartpole", "total_steps=512", "batch_size=256", "sampler.n=2",
                            "logger.progress=quiet", "algo.epochs=1", "eval.episodes=0"])
    print(walle.train(config, "out").env_steps)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guard", "code"),
    [
        pytest.param('if __name__ == "__main__":', 0, marks=pytest.mark.slow),
        ("if True:", 1),
        pytest.param("with open('script.py'):", 1, marks=pytest.mark.slow),
    ],
)
def test_a_script_without_a_guard_is_told_so(tmp_path, guard, code):
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard))
    command = [sys.executable, "script.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout == ("512\n" if code == 0 else "")
    if code:
        assert "if __name__ == '__main__':" in ran.stderr
        assert ran.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_a_script_on_standard_input_is_told_to_be_saved(tmp_path):
    script = SCRIPT.format(guard='if __name__ == "__main__":')
    command, piped = [sys.executable, "-"], {"input": script, "text": True, "timeout": 500}
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, **piped)
    assert ran.returncode == 1
    assert "standard input cannot be imported by samplers and learners: save it" in ran.stderr
    assert ran.stderr.count("Traceback") == 1
    assert not (tmp_path / "out").exists()
