"""The code in docs/own_robot.md runs as it stands."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "own_robot.md"


def test_the_code_blocks_run_in_order():
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    namespace = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), namespace)
    assert namespace["lanes"].episode_limit == 200
