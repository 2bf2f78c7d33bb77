import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch

from tests.algos.on_policy.test_ppo import trained
from tests.conftest import own_cache
from walle.learning import compiled
from walle.learning import onednn as products
from walle.learning.adam import AdamSettings, AdamState
from walle.learning.compiled import compile_function
from walle.learning.optimizer import Optimizer
from walle.system.files import cache_directory

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SMALL = ("env=hopper", "batch_size=256", "sampler.lanes=8", "algo.minibatch_size=24")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of this module's own: what it compiles, it compiles itself, and once."""
    with pytest.MonkeyPatch.context() as patch:
        path = own_cache(tmp_path_factory.mktemp("cache"))
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield cache_directory()


def scaled(factor):
    return lambda x: (x * factor, x.tanh())


def both(algorithm, rollout, warm):
    """The algorithm's vectors after learning from a rollout, eager and compiled."""
    state = algorithm.state_dict()
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
    algorithm.update(rollout)
    eager = algorithm.vector
    algorithm.load_state_dict(state)
    warm(algorithm)
    metrics = algorithm.update(rollout)
    return eager, algorithm.vector, metrics


@needs_compiler
@pytest.mark.slow
def test_compiled_and_eager_ppo_agree_after_two_hundred_steps():
    # 256 rows in minibatches of 24: ten full ones and one of 16, nineteen times over
    algorithm, rollout = trained(1, *SMALL, "algo.compile=true", "algo.epochs=19")
    eager, fast, metrics = both(algorithm, rollout, lambda a: a.warm_up())
    assert metrics["minibatches"] == 209
    torch.testing.assert_close(fast, eager, atol=1e-5, rtol=0)
    assert not torch.equal(fast, eager)  # the fast way was really taken


@needs_compiler
@pytest.mark.slow
def test_compiled_and_eager_ppo_with_a_memory_agree():
    memory = ("net=gru", "net.sequence=4", "net.hidden=16")
    algorithm, rollout = trained(1, *SMALL, *memory, "algo.compile=true", "algo.epochs=10")
    eager, fast, metrics = both(algorithm, rollout, lambda a: a.warm_up())
    assert metrics["minibatches"] == 110  # 64 sequences, 6 at a time
    torch.testing.assert_close(fast, eager, atol=1e-5, rtol=0)
    assert not torch.equal(fast, eager)


@needs_compiler
@pytest.mark.slow
def test_compiled_and_eager_stop_at_the_same_step():
    options = ("algo.target_kl=0.003", "algo.learning_rate=1e-3", "algo.epochs=19")
    algorithm, rollout = trained(1, *SMALL, "algo.compile=true", *options)
    state = algorithm.generator.get_state()
    eager, fast, metrics = both(algorithm, rollout, lambda a: a.warm_up())
    assert 0 < metrics["minibatches"] < 209
    torch.testing.assert_close(fast, eager, atol=1e-5, rtol=0)
    assert not torch.equal(state, algorithm.generator.get_state())


@needs_compiler
@pytest.mark.slow
def test_compiled_ppo_kl_follows_its_penalty_without_compiling_again(cache):
    small = ("algo=ppo_kl", "env=hopper", "batch_size=256", "sampler.lanes=8")
    algorithm, rollout = trained(1, *small, "algo.compile=true", "algo.value_minibatch_size=64")
    before = set(cache.glob("*.pt2"))
    algorithm.beta = 0.5
    eager, fast, _ = both(algorithm, rollout, lambda a: a.warm_up())
    torch.testing.assert_close(fast, eager, atol=1e-5, rtol=0)
    built = set(cache.glob("*.pt2")) - before
    assert len(built) == 2  # policy and value function
    algorithm.beta = 20.0
    _, fast, _ = both(algorithm, rollout, lambda a: None)
    assert set(cache.glob("*.pt2")) - before == built
    assert not torch.allclose(fast, eager, atol=1e-3, rtol=0)


@needs_compiler
@pytest.mark.slow
def test_the_cache_serves_the_same_function_only(cache):
    x = torch.randn(8)
    before = set(cache.glob("*.pt2"))
    first = compile_function(scaled(2.0), (x,))
    built = set(cache.glob("*.pt2")) - before
    written = next(iter(built)).stat().st_mtime_ns
    torch.testing.assert_close(first(x), [x * 2, x.tanh()])
    torch.testing.assert_close(compile_function(scaled(2.0), (x,))(x), [x * 2, x.tanh()])
    assert set(cache.glob("*.pt2")) - before == built
    assert next(iter(built)).stat().st_mtime_ns == written
    torch.testing.assert_close(compile_function(scaled(3.0), (x,))(x)[0], x * 3)
    assert len(set(cache.glob("*.pt2")) - before) == 2
    assert not list(cache.glob("*.building"))


@pytest.mark.slow
@needs_compiler
def test_an_example_given_twice_stays_two_inputs(monkeypatch, tmp_path, cache):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where torch's cache is by default
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    x, before = torch.ones(3), set(cache.glob("*.unpacked"))
    program = compile_function(lambda x, y: (x - 2 * y,), (x, x))
    assert program(x, torch.zeros(3))[0].tolist() == [1, 1, 1]
    assert os.listdir(tmp_path) == []
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    (unpacked,) = set(cache.glob("*.unpacked")) - before
    assert list(unpacked.glob("*/*"))
    del program
    assert not unpacked.exists()
    assert not list(cache.glob("*.building"))


def test_where_onednn_is_quicker():
    here = torch.backends.mkldnn.is_available()
    assert products.is_quicker("flags : avx2 avx512f\nmodel name : AMD EPYC") == here
    assert not products.is_quicker("flags : avx2\nmodel name : AMD EPYC")
    assert not products.is_quicker("flags : avx2 avx512f\nmodel name : Intel(R) Xeon(R)")


def test_tanh_to_float_accuracy():
    x = torch.linspace(-20, 20, 400_001)
    expected = x.double().tanh()
    error = (compiled.tanh(x) - expected).abs()
    assert error.max() < 5e-7
    assert (error / expected.abs().clamp(min=1e-30))[x != 0].max() < 5e-7
    at_the_ends = compiled.tanh(torch.tensor([0.0, torch.inf, -torch.inf]))
    torch.testing.assert_close(at_the_ends, torch.tensor([0.0, 1.0, -1.0]))


def test_importing_the_agent_or_a_sampler_loads_no_compiler_and_no_library_for_figures():
    heavy = {"torch._dynamo", "torch._inductor", "sympy", "scipy", "pandas", "matplotlib"}
    code = (
        "import sys, walle.training, walle.algos.on_policy.ppo, walle.envs.mujoco.registry;"
        "import walle.sampling.sampler_process;"
        f"print([name for name in {sorted(heavy)} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = cache_directory()
    assert path.parent == tmp_path
    assert os.access(path, os.W_OK)
    assert cache_directory() == path  # every job finds what the first one compiled


def test_a_library_is_not_kept_where_another_user_could_change_it(monkeypatch, tmp_path):
    file, elsewhere = tmp_path / "file", tmp_path / "elsewhere"
    file.touch()
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"walle-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="set XDG_CACHE_HOME"):
        cache_directory()


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@needs_compiler
@pytest.mark.slow
def test_a_library_with_a_flipped_bit_is_built_again(cache):
    x = torch.randn(5)  # a shape of its own, so a library of its own
    before = set(cache.glob("*.pt2"))
    compile_function(scaled(2.0), (x,))
    (package,) = set(cache.glob("*.pt2")) - before
    package.write_bytes(flipped(package.read_bytes()))
    checksum = package.with_suffix(".sha256")
    assert hashlib.sha256(package.read_bytes()).hexdigest() != checksum.read_text()
    torch.testing.assert_close(compile_function(scaled(2.0), (x,))(x), [x * 2, x.tanh()])
    assert hashlib.sha256(package.read_bytes()).hexdigest() == checksum.read_text()


@pytest.fixture
def builds(monkeypatch):
    """Makes libraries texts, whose building takes no time; returns the paths that were built."""
    built = []

    def build(_graph, _example, path):
        built.append(path)
        path.write_bytes(b"a library")

    monkeypatch.setattr(compiled, "_build", build)
    monkeypatch.setattr(compiled, "Program", lambda path: path.read_bytes())
    return built


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda b: b[:-1], flipped, lambda b: b + b" ", None]
)
@pytest.mark.parametrize("description", [None, "a function of one input"])
def test_a_damaged_library_is_built_again(builds, cache, damage, description):
    x = torch.zeros(3)
    shutil.rmtree(cache)
    compile_function(scaled(2.0), (x,), description)
    (package,) = builds
    if damage is None:
        package.with_suffix(".sha256").unlink()
    else:
        package.write_bytes(damage(b"a library"))
    assert compile_function(scaled(2.0), (x,), description) == b"a library"
    assert compile_function(scaled(2.0), (x,), description) == b"a library"
    assert builds == [package, package]


def test_runs_that_want_a_library_at_the_same_time_build_it_once(builds, cache, monkeypatch):
    x = torch.zeros(4)
    graph = compiled._trace(scaled(2.0), (x,))
    monkeypatch.setattr(compiled, "_trace", lambda *_: graph)
    monkeypatch.setattr(compiled, "_torch_files", lambda _: nullcontext())
    build = compiled._build

    def slowly(*arguments):
        time.sleep(0.3)  # the other threads want the library now
        build(*arguments)

    monkeypatch.setattr(compiled, "_build", slowly)
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(compile_function, scaled(2.0), (x,)) for _ in range(3)]
    assert [job.result() for job in jobs] == [b"a library"] * 3
    assert len(builds) == 1


class Data(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.slow
def test_compiling_needs_no_example_of_the_remainder():
    vector = torch.zeros(3)
    data = Data(torch.randn(10, 3), torch.randn(10))

    def loss(vector, batch):
        error = batch.x @ vector - batch.y
        return error.square().mean(), {"worst": error.abs().max()}

    results = []
    for warm in (False, True):
        optimizer = Optimizer(loss, AdamSettings(max_grad_norm=0.1))
        if warm:
            optimizer.compile(vector, data, 4)
        results.append(
            optimizer.minimise(
                vector,
                AdamState.zeros_like(vector),
                data,
                epochs=67,
                minibatch_size=4,
                learning_rate=0.01,
                generator=torch.Generator().manual_seed(0),
            )
        )
    eager, fast = results
    assert fast.minibatches == eager.minibatches == 201
    torch.testing.assert_close(fast.vector, eager.vector, atol=1e-5, rtol=0)
    assert fast.info == pytest.approx(eager.info, rel=1e-4)


def test_a_described_function_is_traced_once(monkeypatch, cache, builds):
    x, traced = torch.tensor([1.0, 2.0]), []

    def trace(*arguments, really=compiled._trace):
        traced.append(arguments)
        return really(*arguments)

    monkeypatch.setattr(compiled, "_trace", trace)
    monkeypatch.setattr(compiled, "Program", lambda path: path)
    before = set(cache.glob("*.package"))
    package = compile_function(scaled(5.0), (x,), "five times")
    assert compile_function(scaled(5.0), (x,), "five times") == package
    assert len(traced) == 1
    (known,) = set(cache.glob("*.package")) - before
    for damaged in ("../elsewhere.pt2", "no-such.pt2", "\0"):
        known.write_text(damaged)
        assert compile_function(scaled(5.0), (x,), "five times") == package
        assert known.read_text() == package.name  # written again
    assert len(traced) == 4
    assert compile_function(scaled(5.0), (x,), "the same in other words") == package
    assert compile_function(scaled(5.0), (torch.ones(3),), "five times") != package
    assert len(traced) == 6
    monkeypatch.setattr(compiled, "_code", lambda: b"the code of another version")
    assert compile_function(scaled(5.0), (x,), "five times") == package
    assert len(traced) == 7
    assert not list(cache.glob("*.writing"))
