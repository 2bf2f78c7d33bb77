"""The callbacks of a run: made from their names, called between rounds, kept in checkpoints."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from walle.agent.callback import Callback, EndInfo, Info, RoundInfo
from walle.agent.recorder import Recorder
from walle.errors import CallbackError, ConfigError, nearest, what_went_wrong
from walle.system.importing import imported
from walle.timing import Timer

_PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray, np.generic, torch.Tensor)


def make_callbacks(names: Sequence[str]) -> dict[str, Callback]:
    """The callbacks by name; ConfigError if one cannot be imported or made."""
    made = {}
    hooks = [hook for hook in vars(Callback) if hook.startswith("on_")]
    for name in names:
        try:
            callback = imported("callbacks", name)
            if not (isinstance(callback, type) and issubclass(callback, Callback)):
                raise ConfigError(f"callbacks={name!r}: derive it from walle.Callback")  # noqa: TRY301
            made[name] = callback()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"callbacks={name!r}: {what_went_wrong(error)}") from error
        # Nobody would call a method whose name only looks like a hook's.
        for method in dir(type(made[name])):
            if method.startswith("on_") and method not in hooks:
                raise ConfigError(
                    f"callbacks={name!r} has a method {method}, which is no hook; "
                    f"{nearest(method, hooks)}"
                )
    return made


@dataclass
class Callbacks:
    """Calls the hooks of all callbacks, in the section `callbacks` of the agent's timer."""

    callbacks: Mapping[str, Callback]
    timer: Timer
    directory: Path
    recorder: Recorder
    stopped_by: str | None = None  # the first callback that stopped the run

    def call(
        self, hook: str, kind: type[Info], iteration: int, env_steps: int, **facts: Any
    ) -> None:
        """Calls a hook with a `kind` made of the facts and the recorder's values."""
        if not self.callbacks:
            return
        with self.timer.section("callbacks"):
            if kind in (RoundInfo, EndInfo):
                facts["return_mean"] = self.recorder.tracker.return_mean
                facts["eval_mean"] = self.recorder.eval_mean
            facts |= {"iteration": iteration, "env_steps": env_steps, "wall_s": self.timer.wall_s}
            info = kind(directory=self.directory, **facts)
            for name, callback in self.callbacks.items():
                if _called(name, callback, hook, info) and hook != "on_end":
                    self.stopped_by = self.stopped_by or name

    def state_dict(self) -> dict[str, Any]:
        """The states by name, and what stopped the run; CallbackError if one is not plain data."""
        with self.timer.section("callbacks"):
            states = {}
            for name, callback in self.callbacks.items():
                states[name] = _called(name, callback, "state_dict")
                if fault := _foreign(states[name]):
                    raise CallbackError(
                        f"callback {name} has a {fault} in its state_dict: give numbers, texts, "
                        "lists, mappings, arrays or tensors"
                    )
        return {"states": states, "stopped_by": self.stopped_by}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from `state_dict`; new callbacks start from scratch."""
        if state["stopped_by"] in self.callbacks:
            self.stopped_by = state["stopped_by"]
        for name, callback in self.callbacks.items():
            if name in state["states"]:
                _called(name, callback, "load_state_dict", state["states"][name])


def stop_reason(name: str | None) -> str | None:
    """The reason in status.json for a run that the callback `name` stopped; None without one."""
    return None if name is None else f"stopped by callback {name}"


def _called(name: str, callback: Callback, hook: str, *arguments: Any) -> Any:
    """Calls a method; CallbackError if it raises, or a hook returns neither a bool nor None."""
    try:
        returned = getattr(callback, hook)(*arguments)
    except (Exception, SystemExit):  # noqa: BLE001 - a callback may raise anything
        text = traceback.format_exc()
        raise CallbackError(f"callback {name} failed in {hook}:\n{text}") from None
    if hook.startswith("on_") and not isinstance(returned, None | bool | np.bool_):
        raise CallbackError(
            f"callback {name} returned {returned!r} from {hook}: return True to end the run, else "
            "None"
        )
    return returned


def _foreign(value: Any) -> str | None:
    """The name of a type in `value` that a checkpoint cannot hold; None if there is none."""
    if isinstance(value, Mapping):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return None if isinstance(value, _PLAIN) else type(value).__name__
    return next((name for part in parts if (name := _foreign(part))), None)
