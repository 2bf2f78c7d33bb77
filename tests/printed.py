"""The commands that the documentation prints."""

from __future__ import annotations

import re
from pathlib import Path


def commands(text: str, pattern: str) -> list[str]:
    """What the first group finds at the beginning of a line of code, or of code in a sentence."""
    block = r"^```[^`\n]*\n(.*?)^```"
    lines = [
        line
        for code in re.findall(block, text, re.MULTILINE | re.DOTALL)
        for line in re.sub(r"\\\n\s*", "", code).splitlines()
    ]
    spans = re.findall(r"`([^`]+)`", re.sub(block, "", text, flags=re.MULTILINE | re.DOTALL))
    found = [re.match(pattern, " ".join(each.split())) for each in (*lines, *spans)]
    return sorted({each[1] for each in found if each})


_DOCS = Path(__file__).resolve().parents[1] / "docs"
_MEASURING = ("learning", "reproductions", "results", "scaling", "study")
_MEASURING += ("notes/reproductions", "notes/results")
TEXT = "\n".join((_DOCS / f"{page}.md").read_text() for page in _MEASURING)
SWEEPS = commands(TEXT, r"walle run (-cn (?!NAME).+)")
