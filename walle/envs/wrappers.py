"""The wrappers that `env.wrappers` names: Gymnasium's, and those of a user's modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast, get_origin

import gymnasium as gym

from walle.errors import ConfigError, nearest, what_went_wrong
from walle.system.importing import imported

Env = gym.Env[Any, Any]
Maker = Callable[..., Env]


def name_of(entry: Any) -> str:
    """The wrapper's name in an entry of `env.wrappers`: "Name", or {name: Name, key: value}."""
    name = entry.get("name") if isinstance(entry, Mapping) else entry
    if isinstance(name, str):
        return name
    raise ConfigError(
        f"env.wrappers: {entry!r} must be a name or a mapping with arguments, as in "
        "env.wrappers=[TimeAwareObservation,{name:FrameStackObservation,stack_size:4}]"
    )


def wrapped(env: Env, entry: Any) -> Env:
    """The environment in the wrapper that an entry of `env.wrappers` names.

    The name is a class of gymnasium.wrappers, or "module:Name".

    Raises:
        ConfigError: there is no such wrapper, or it refuses its arguments or the environment.
    """
    name = name_of(entry)
    arguments = {str(k): v for k, v in entry.items() if k != "name"} if entry != name else {}
    if ":" in name:
        make = checked_maker("env.wrappers", name, imported("env.wrappers", name), gym.Wrapper)
    elif name in (known := sorted(set(gym.wrappers.__all__) - {"vector"})):  # they take no lists
        arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
        make = getattr(gym.wrappers, name)
    else:
        raise ConfigError(
            f"env.wrappers: {name} is no wrapper of Gymnasium; {nearest(name, known)} "
            "(one of your own: module:Name)"
        )
    parameters = inspect.signature(make).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for key in () if takes_any else arguments.keys() - parameters.keys():
        near = nearest(key, [*parameters][1:]) if len(parameters) > 1 else "it takes none"
        raise ConfigError(f"env.wrappers: {name} has no argument {key!r}; {near}")
    try:
        made = make(env, **deepcopy(arguments))
    except Exception as error:  # a wrapper's own code may raise anything
        raise ConfigError(f"env.wrappers: {name}: {what_went_wrong(error)}") from error
    if not isinstance(made, gym.Env):
        raise ConfigError(f"env.wrappers: {name} returned {made!r}, which is no gymnasium.Env")
    return made


def checked_maker(key: str, path: str, maker: Any, base: type) -> Maker:
    """Returns `maker`, the object named by `key`=`path` ("module:Name"), if it makes environments.

    Raises ConfigError, without calling `maker`, unless it is a subclass of `base` or a function
    that is annotated to return a `gymnasium.Env`.
    """
    name = path.rpartition(":")[2]
    made, wanted, fault = maker, base, f"derive {name} from gymnasium.{base.__name__}"
    if not isinstance(maker, type):
        wanted = gym.Env
        fault = f"annotate the function {name} with what it returns, such as `-> gymnasium.Env`"
        try:
            made = inspect.signature(maker, eval_str=True).return_annotation
        except Exception as error:  # noqa: BLE001 - not callable, or its annotation has no meaning
            fault += f" ({what_went_wrong(error)})"
    made = get_origin(made) or made
    if isinstance(made, type) and issubclass(made, wanted):
        return cast("Maker", maker)
    kind = "an environment, nor a Robot" if base is gym.Env else "a wrapper"
    raise ConfigError(
        f"{key}={path!r} is neither {kind}, nor a function that returns one, so it is not called: "
        f"{fault}"
    )
