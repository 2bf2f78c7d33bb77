"""Exports a trained policy as ONNX or for torch.export, to act without walle.

    walle export outputs/hopper hopper.onnx
    walle export outputs/hopper hopper.onnx hopper.pt2 which=last

The normaliser of observations and the rescaling of actions are in the graph, and a memory is an
input and an output. Each file is compared with the policy on a thousand observations.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from walle.errors import ConfigError, WalleError
from walle.nets.normalize import apply_normalizer
from walle.nets.recurrent import memory_of
from walle.policy.acting import Policy
from walle.policy.arguments import Setting, parse
from walle.policy.loading import load
from walle.types import AnyArray, FloatArray

SETTINGS = {
    "which": Setting(str, None, "best or last checkpoint; by default the best if there is one")
}
TOLERANCE = 1e-5
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_CHECKED, _STEPS = 100, 10  # episodes and steps of the comparison: a thousand observations

Graph = Callable[[FloatArray, FloatArray], tuple[AnyArray, FloatArray]]


class ActingModule(torch.nn.Module):
    """The likeliest actions of a policy as a function of tensors alone.

    Raw observations [N, O] give actions [N, *A] in the environment's units. With a memory the state
    [N, S] is a second argument, and the next state a second result.
    """

    def __init__(self, policy: Policy) -> None:
        """Copies the parameters, the normaliser and the bounds of `policy`."""
        super().__init__()
        self.mean: Tensor
        self.inv_std: Tensor
        self.scale: Tensor
        self.centre: Tensor
        self.low: Tensor
        self.high: Tensor
        self._network, self._clip = policy.network, policy.obs_clip
        self._memory = memory_of(policy.network)
        self._first_action = policy.spaces.first_action
        layout = policy.network.layout
        parameters, mean, inv_std = map(torch.from_numpy, policy.snapshot.parts(layout.size))
        self._params = {name: name.replace(".", "_") for name in layout.shapes}
        for name, value in layout.unflatten(parameters).items():
            self.register_buffer(self._params[name], value.clone())
        self.register_buffer("mean", mean)
        self.register_buffer("inv_std", inv_std)
        self._maps = policy.action_map is not None
        for name in ("scale", "centre", "low", "high") if self._maps else ():
            bound = getattr(policy.action_map, name)
            self.register_buffer(name, torch.from_numpy(np.asarray(bound, np.float32)))

    def forward(self, obs: Tensor, state: Tensor | None = None) -> Any:
        """The actions; with a memory, the actions and the next state."""
        params = {name: getattr(self, buffer) for name, buffer in self._params.items()}
        x = apply_normalizer(obs, self.mean, self.inv_std, self._clip)
        if self._memory is not None:
            assert state is not None
            x = state = self._memory.step(params, x, state)
        action = self._network.mode(self._network.dist(params, x))
        if self._maps:
            scaled = action * self.scale + self.centre
            action = torch.minimum(torch.maximum(scaled, self.low), self.high)
        elif self._first_action:
            action = action + self._first_action
        return action if state is None else (action, state)


def export(policy: Policy, file: str | Path) -> float:
    """Writes the policy to a file, and compares the file with the policy.

    Args:
        policy: what to export.
        file: its ending decides: `.onnx` for ONNX, `.pt2` for `torch.export.load`. Inputs are
            called `obs` and `state`, outputs `action` and `next_state`.

    Returns:
        the largest difference of an action or a state, over a thousand observations.

    Raises:
        ConfigError: the ending is another one, or a package is missing.
        WalleError: the file does not act as the policy does.
    """
    path = Path(file)
    if path.suffix not in _WRITERS:
        raise ConfigError(f"{path}: the ending must be one of {', '.join(_WRITERS)}")
    module = ActingModule(policy).eval()
    obs = torch.zeros(2, policy.obs_dim)
    inputs: tuple[Tensor, ...] = (obs,)
    if policy.state_size:
        inputs += (torch.zeros(2, policy.state_size),)
    graph = _WRITERS[path.suffix](module, inputs, path, policy)
    found = difference(policy, graph)
    if not found <= TOLERANCE:
        raise WalleError(f"{path} differs from the policy by {found:.2g}, more than {TOLERANCE}")
    return found


def difference(policy: Policy, graph: Graph) -> float:
    """The largest difference between a graph and the policy: [100] episodes of ten observations.

    The observations are spread as those of the training were, and twice as wide. Of a thousand
    discrete actions, a different one counts as 1.
    """
    _, mean, inv_std = policy.snapshot.parts(policy.network.layout.size)
    rng, worst = np.random.default_rng(0), 0.0
    ours = theirs = policy.initial_state(_CHECKED)
    for _ in range(_STEPS):
        noise = rng.standard_normal((_CHECKED, policy.obs_dim))
        obs = (mean + 2 * noise / inv_std).astype(np.float32)
        expected, ours = policy.act(obs, ours)
        action, theirs = graph(obs, theirs)
        wide = [np.asarray(each, np.float64) for each in (action, expected)]
        gaps = [np.abs(wide[0] - wide[1]), np.abs(theirs - ours)]
        worst = max([worst, *(float(gap.max()) for gap in gaps if gap.size)])
    return worst


def _dynamic(inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in inputs)


def _write_onnx(
    module: ActingModule, inputs: tuple[Tensor, ...], path: Path, policy: Policy
) -> Graph:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{path} needs packages that are missing ({', '.join(missing)}); install walle[export]"
        )
    import onnxruntime

    names = ["obs", "state"][: len(inputs)]
    with _quiet():
        program: Any = torch.onnx.export(
            module,
            inputs,
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=["action", "next_state"][: len(inputs)],
            dynamic_shapes=_dynamic(inputs),
        )
    about = {**policy.origin._asdict(), "env": policy.spec.id}
    program.model.metadata_props.update({name: str(value) for name, value in about.items()})
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def graph(obs: FloatArray, state: FloatArray) -> tuple[AnyArray, FloatArray]:
        action, *following = session.run(None, dict(zip(names, (obs, state), strict=False)))
        return action, following[0] if following else state

    return graph


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences what the exporter says about packages that no policy needs."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _write_torch(
    module: ActingModule,
    inputs: tuple[Tensor, ...],
    path: Path,
    policy: Policy,  # noqa: ARG001 - as the other writer
) -> Graph:
    with torch.no_grad():
        program = torch.export.export(module, inputs, dynamic_shapes=_dynamic(inputs))
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()

    def graph(obs: FloatArray, state: FloatArray) -> tuple[AnyArray, FloatArray]:
        arrays = (obs, state)[: len(inputs)]
        found = loaded(*map(torch.from_numpy, arrays))
        if len(inputs) == 1:
            return found.numpy(), state
        return found[0].numpy(), found[1].numpy()

    return graph


_WRITERS: dict[str, Callable[..., Graph]] = {".onnx": _write_onnx, ".pt2": _write_torch}


def main() -> int:
    """Runs the command; returns 2 for a wrong argument, 1 if a file differs from the policy."""
    try:
        return _main(sys.argv[1:])
    except (ConfigError, OSError) as error:
        print(f"walle export: {error}", file=sys.stderr)
        return 2
    except WalleError as error:
        print(f"walle export: {error}", file=sys.stderr)
        return 1


def _main(arguments: Sequence[str]) -> int:
    (path, *files), values, _ = parse(arguments, __doc__ or "", SETTINGS)
    policy = load(path, **values)
    print(policy)
    for file in files or [Path("policy.onnx")]:
        worst = export(policy, file)
        print(f"{file}: differs from the policy by {worst:.1e} at most, on 1,000 observations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
