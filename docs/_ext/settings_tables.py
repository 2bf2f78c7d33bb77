"""Tables of all settings, as Markdown, from the comments in conf/ and of the launcher."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
LAUNCHER = ROOT / "walle" / "launcher" / "settings.py"
WALLE_LAUNCHER = CONF / "hydra" / "launcher" / "walle.yaml"
GROUPS = {
    "algo": "Algorithms",
    "env": "Environments",
    "net": "Networks",
    "sampler": "Samplers",
    "learner": "Learners",
    "logger": "Loggers",
}
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w/]+):(?:\s+(?P<rest>.*))?$")
_LAUNCHER_FIELD = re.compile(r"^    (\w+): [^=]+ = (.+?)(?:  # noqa.*)?$")
_NO_SETTINGS = ("defaults", "hydra")


class Setting(NamedTuple):
    """A setting with its default and its comment, as the file writes them."""

    key: str
    default: str
    comment: str


def settings_of(file: Path) -> list[Setting]:
    """The settings of a YAML file, by dotted key, in the file's order.

    A comment may go on in the lines below; a key of a group of settings is no setting itself.
    """
    found: list[Setting] = []
    parents: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        match = _LINE.match(line)
        if match:
            depth = len(match["indent"]) // 2
            parents = [*parents[:depth], match["key"]]
            default, comment = _split(match["rest"] or "")
            if parents[0] not in _NO_SETTINGS and default:
                found.append(Setting(".".join(parents), default, comment))
        elif found and line.startswith("  ") and line.lstrip().startswith("#"):
            more = line.strip().lstrip("# ")
            found[-1] = found[-1]._replace(comment=f"{found[-1].comment} {more}".strip())
    return found


def launcher_settings() -> list[Setting]:
    """The keys of `hydra.launcher`, each with the comment above it."""
    text = LAUNCHER.read_text(encoding="utf-8")
    found = _fields(text.partition("_target_")[2].partition("\ndef ")[0])
    nested = {"slurm": "SlurmConf", "ray": "RayConf"}
    rows = [one for one in found if one.key not in nested]
    for group, name in nested.items():
        own = _fields(text.partition(f"class {name}")[2].partition("@dataclass")[0])
        rows += [one._replace(key=f"{group}.{one.key}") for one in own]
    set_by_walle = {one.key: one.default for one in settings_of(WALLE_LAUNCHER)}
    return [one._replace(default=set_by_walle.get(one.key, one.default)) for one in rows]


def _fields(text: str) -> list[Setting]:
    """The fields of a dataclass, each with the comment above it."""
    found, comment = [], ""
    for line in text.splitlines():
        if line.startswith("    # "):
            comment = f"{comment} {line.strip('# ')}".strip()
        elif match := _LAUNCHER_FIELD.match(line):
            found.append(Setting(match[1], _plain(match[2]), comment))
            comment = ""
    return found


def markdown() -> str:
    """The page: a table of every file in conf/, and one of the launcher."""
    top = CONF / "config.yaml"
    parts = [f"## Top level\n\n{_table(settings_of(top))}"]
    for group, title in GROUPS.items():
        files = sorted((CONF / group).glob("*.yaml"))
        parts.append(f"## {title}: `{group}`")
        parts += [_section(group, file) for file in files]
    tuned = sorted((CONF / "env" / "tuned").glob("*.yaml"))
    about = "Settings for one algorithm on one task, which a run takes by itself."
    parts.append(f"## Tuned settings: `env/tuned`\n\n{about}")
    parts += [_section("env/tuned", file) for file in tuned]
    about = "Settings of sweeps; `-m hydra.launcher.KEY=VALUE`."
    rows = [one._replace(key=f"hydra.launcher.{one.key}") for one in launcher_settings()]
    parts.append(f"## The launcher: `hydra.launcher`\n\n{about}\n\n{_table(rows)}")
    return "\n\n".join(parts)


def _section(group: str, file: Path) -> str:
    settings = settings_of(file)
    is_global = file.read_text(encoding="utf-8").startswith("# @package _global_")
    prefix = "" if is_global else f"{group}."
    rows = [one._replace(key=f"{prefix}{one.key}") for one in settings]
    rows = [one for one in rows if one.key != f"{group}.name"]  # the heading has it
    parts = [f"### `{group}={file.stem}`", _about(file), _table(rows) if rows else ""]
    return "\n\n".join(filter(None, parts))


def _about(file: Path) -> str:
    """The comment at the top of the file."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def _split(rest: str) -> tuple[str, str]:
    """The value and the comment of a line; a `#` needs a space before it."""
    if rest.startswith("#"):
        return "", rest.lstrip("# ")
    value, _, comment = rest.partition(" #")
    return value.strip(), comment.strip()


def _plain(value: str) -> str:
    """A default of the launcher as one would type it."""
    if value.startswith("field("):
        return "[]"
    if bounded := re.fullmatch(
        r"(?:positive|not_negative|one_of|within)\((?:.*default=)?(.*)\)", value
    ):
        value = bounded[1]
    if value == "DEFAULT_REPEAT":
        return "seed"
    return {"None": "null", "True": "true", "False": "false"}.get(value, value.strip('"'))


def _table(rows: list[Setting]) -> str:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    cells = [(f"`{key}`", f"`{default}`", _cell(comment)) for key, default, comment in rows]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def _cell(text: str) -> str:
    """A comment as Markdown that shows it as it is written."""
    return re.sub(r"([\\|*_<>$`\[\]])", r"\\\1", text)
