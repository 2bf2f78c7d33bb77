"""Exports a trained policy as ONNX or for torch.export, to act without walle.

    walle export outputs/hopper hopper.onnx
    walle export outputs/hopper hopper.onnx hopper.pt2 which=last

The normaliser of observations and the rescaling of actions are in the graph, and a memory is an
input and an output. Each file is compared with the policy on a thousand observations.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import Buffer

from walle.errors import ConfigError, WalleError
from walle.nets.features import Encoder
from walle.nets.policies import encoder_of, memory_of
from walle.policy.acting import Policy, load
from walle.policy.arguments import Setting, parse
from walle.types import AnyArray, FloatArray

SETTINGS = {
    "which": Setting(str, None, "best or last checkpoint; by default the best if there is one"),
    "trust": Setting(bool, False, "import the net or the algorithm that the policy names"),
}
TOLERANCE = 1e-5
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_CHECKED, _STEPS = 100, 10  # episodes and steps of the comparison: a thousand observations

Graph = Callable[[AnyArray, FloatArray], tuple[AnyArray, FloatArray]]
Program = Callable[[Mapping[str, Tensor]], Sequence[Any]]


class ActingModule(torch.nn.Module):
    """The deterministic actions of a policy, as a function of tensors alone.

    It maps raw observations [N, O] to actions [N, *A] in the environment's units. With a memory the
    state [N, S] is a second argument, and the next state a second result.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._network, self._clip = policy.network, policy.obs_clip
        self._memory, bounds = memory_of(policy.network), policy.action_map
        first = policy.spaces.first_action
        self._counts_on, self._maps = bool(np.any(first)), bounds is not None
        self._shape, offset = policy.spaces.shape, policy.spec.offset
        self.offset = None if offset is None else Buffer(torch.tensor(offset, dtype=torch.float64))
        self.first_action = Buffer(torch.as_tensor(first), persistent=self._counts_on)
        layout = policy.network.layout
        parameters, mean, inv_std = map(torch.from_numpy, policy.snapshot.parts(layout.size))
        self._params = {name: name.replace(".", "_") for name in layout.shapes}
        for name, value in layout.unflatten(parameters).items():
            self.register_buffer(self._params[name], value.clone())
        if len(mean):  # torch cannot save empty buffers; images alone are not normalised
            self.mean, self.inv_std = Buffer(mean), Buffer(inv_std)
        if bounds is not None:
            ends = _inside(bounds.low, bounds.high)
            self.scale, self.centre, self.low, self.high = (
                Buffer(torch.from_numpy(np.asarray(x, np.float32)))
                for x in (bounds.scale, bounds.centre, *ends)
            )

    def forward(self, obs: Tensor, state: Tensor | None = None) -> Any:
        """The actions; with a memory, the actions and the next state."""
        features = self._normalized(obs)
        if self._memory is None:
            return self._action(features)
        assert state is not None
        state = self._memory.step(self._named(), features, state)
        return self._action(state), state

    def _named(self) -> dict[str, Tensor]:
        return {name: getattr(self, buffer) for name, buffer in self._params.items()}

    def _normalized(self, vectors: Tensor) -> Tensor:
        x = vectors if self.offset is None else (vectors - self.offset).float()
        x = (x - self.mean) * self.inv_std
        return x if self._clip is None else x.clamp(-self._clip, self._clip)

    def _action(self, features: Tensor) -> Tensor:
        action = self._network.mode(self._network.dist(self._named(), features))
        if self._maps:
            scaled = action * self.scale + self.centre
            action = torch.minimum(torch.maximum(scaled, self.low), self.high)
        elif self._counts_on:
            action = action + self.first_action
        return action if self._shape is None else action.reshape(action.shape[0], *self._shape)

    def inputs(self, obs: AnyArray, state: FloatArray) -> dict[str, Tensor]:
        """The arguments of `forward` by name, for observations [N, O] and the memory [N, S]."""
        rows = torch.from_numpy(obs)
        named = {"obs": rows if self.offset is None else rows.double()}
        return named | ({"state": torch.from_numpy(state)} if self._memory is not None else {})


def _inside(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds of float64 in float32, moved to the next number inside where they would be outside."""
    low32, high32 = (np.asarray(x, np.float32) for x in (low, high))
    up, down = np.nextafter(low32, np.inf), np.nextafter(high32, -np.inf)
    return np.where(low32 < low, up, low32), np.where(high32 > high, down, high32)


class SeeingModule(ActingModule):
    """A policy that sees images, as a module: its arguments are the vector, if any, and the images.

    Images are [N, *shape]: float32, or bytes (also for booleans).
    """

    def __init__(self, policy: Policy, encoder: Encoder) -> None:
        super().__init__(policy)
        self._encoder = encoder
        keys: list[str] = getattr(policy.spaces.observation, "image_keys", [])
        plain = all(key.strip("0123456789") for key in keys) and len({*keys}) == len(keys)
        if not plain or {"vector", "action"} & {*keys}:
            keys = []
        self._images = keys or [f"image{i}" for i in range(len(encoder.obs_layout.images))]

    def forward(self, *parts: Tensor) -> Tensor:  # type: ignore[override]
        """The actions at the arguments that `inputs` names."""
        images = list(parts)
        vectors = images[0].new_zeros((images[0].shape[0], 0), dtype=torch.float32)
        if self._encoder.obs_layout.vector:
            vectors = self._normalized(images.pop(0))
        return self._action(self._encoder.of_parts(self._named(), vectors, images))

    def inputs(self, obs: AnyArray, state: FloatArray) -> dict[str, Tensor]:  # noqa: ARG002
        """The arguments of `forward` by name, for observations in rows of bytes [N, O]."""
        vectors, images = self._encoder.split(torch.from_numpy(obs))
        vectors = vectors if self.offset is None else vectors + self.offset
        if len(images) == 1 and not vectors.shape[1]:
            return {"obs": images[0].contiguous()}
        named = {"vector": vectors} if vectors.shape[1] else {}
        named |= dict(zip(self._images, images, strict=True))
        return {name: part.contiguous() for name, part in named.items()}


def export(policy: Policy, file: str | Path) -> float:
    """Writes the policy to a file, and compares the file with the policy.

    The extension decides: `.onnx` for ONNX, `.pt2` for `torch.export.load`. Inputs are called `obs`
    and `state`, outputs `action` and `next_state`. A single image is also called `obs`. An
    observation with several parts has an input for each image, named after its key in a Dict
    ("robot.camera" in a nested one), otherwise `image0`, `image1`, …; `vector` has the rest.
    Returns the largest `difference`, over a thousand observations.

    Raises:
        ConfigError: the extension is unknown, or a package is missing.
        WalleError: the file does not act like the policy.
    """
    path = Path(file)
    if path.suffix not in (".onnx", ".pt2"):
        raise ConfigError(f"{path}: the ending must be one of .onnx, .pt2")
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if path.suffix == ".onnx" and missing:
        raise ConfigError(
            f"{path} needs packages that are missing ({', '.join(missing)}); install walle[export]"
        )
    encoder = encoder_of(policy.network)
    module = SeeingModule(policy, encoder) if encoder else ActingModule(policy)
    path.parent.mkdir(parents=True, exist_ok=True)
    obs = np.zeros((2, policy.obs_dim), policy.obs_layout.dtype)
    inputs = module.inputs(obs, policy.initial_state(2))
    batch = torch.export.Dim("batch")
    shapes: tuple[Any, ...] = tuple({0: batch} for _ in inputs)
    if encoder:  # the arguments of `*parts`
        shapes = (shapes,)
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        write = _write_onnx if path.suffix == ".onnx" else _write_torch
        run = write(module.eval(), inputs, shapes, part, policy)

        def graph(obs: AnyArray, state: FloatArray) -> tuple[AnyArray, FloatArray]:
            action, *following = run(module.inputs(obs, state))
            return action, following[0] if following else state

        worst, half = difference(policy, graph), policy.spaces.action.dtype == np.float16
        most = float(np.finfo(np.float16).eps) if half else TOLERANCE
        if not worst <= most:
            raise WalleError(
                f"{path} would differ from the policy by {worst:.2g}, more than {most}"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return worst


def difference(policy: Policy, graph: Graph) -> float:
    """The largest difference between a graph and the policy, in 100 episodes of ten observations.

    Vectors are normally distributed with the mean of training and twice its standard deviation,
    pixels uniformly. Where a Box has actions above 1, their difference is divided by the largest. A
    discrete action that differs counts as 1 or more.
    """
    _, mean, inv_std = policy.snapshot.parts(policy.network.layout.size)
    rng, worst, layout = np.random.default_rng(0), 0.0, policy.obs_layout
    ours = theirs = policy.initial_state(_CHECKED)
    is_box = isinstance(policy.spaces.action, gym.spaces.Box)
    for _ in range(_STEPS):
        noise = rng.standard_normal((_CHECKED, layout.vector))
        obs, start = np.zeros((_CHECKED, layout.width), layout.dtype), 4 * layout.vector
        for image in layout.images:
            pixels = rng.uniform(0, image.scale, (_CHECKED, math.prod(image.shape)))
            obs[:, start : start + image.size] = pixels.astype(image.dtype).view(np.uint8)
            start += image.size
        layout.vectors(obs)[:] = mean + 2 * noise / inv_std
        if policy.spec.offset is not None and not layout.images:
            obs = obs + np.array(policy.spec.offset)
        expected, ours = policy.act(obs, ours)
        action, theirs = graph(obs, theirs)
        wide = [np.asarray(x, np.float64) for x in (action, expected)]
        size = np.maximum(1, np.abs(wide[1]).max(0)) if is_box else 1.0
        gaps = [np.abs(wide[0] - wide[1]) / size, np.abs(theirs - ours)]
        worst = max([worst, *(float(gap.max()) for gap in gaps if gap.size)])
    return worst


def _write_onnx(
    module: ActingModule, inputs: Mapping[str, Tensor], shapes: Any, path: Path, policy: Policy
) -> Program:
    import onnxruntime

    logging.disable(logging.WARNING)  # the exporter warns of packages that no policy needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                module,
                tuple(inputs.values()),
                dynamo=True,
                verbose=False,
                input_names=list(inputs),
                output_names=["action", "next_state"][: 1 + bool(policy.state_size)],
                dynamic_shapes=shapes,
            )
    finally:
        logging.disable(logging.NOTSET)
    graph = program.model.graph
    inner = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    for i, value in enumerate(inner):
        if value.name in inputs:  # such as an image's key "centre" or "conv2d"
            value.name = str(i)  # no key is a number alone
    about = {**policy.origin._asdict(), "env": policy.spec.id}
    program.model.metadata_props.update({name: str(value) for name, value in about.items()})
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda named: session.run(None, {name: x.numpy() for name, x in named.items()})


def _write_torch(
    module: ActingModule, inputs: Mapping[str, Tensor], shapes: Any, path: Path, policy: Policy
) -> Program:
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=shapes)
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()

    def run(named: Mapping[str, Tensor]) -> list[AnyArray]:
        results = loaded(*named.values())
        return [x.numpy() for x in (results if policy.state_size else (results,))]

    return run


def main() -> int:
    """Runs the command; returns 2 for a wrong argument, 1 if a file differs from the policy."""
    try:
        (path, *files), values, _ = parse(sys.argv[1:], __doc__ or "", SETTINGS)
        if path.suffix in (".onnx", ".pt2"):
            raise ConfigError(f"{path}: first the run, then the file: walle export DIR {path}")
        policy = load(path, **values)
        print(policy)
        for file in files or [Path("policy.onnx")]:
            worst = export(policy, file)
            print(f"{file}: differs from the policy by {worst:.1e} at most, on 1,000 observations")
    except (WalleError, OSError) as error:
        print(f"walle export: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | OSError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
