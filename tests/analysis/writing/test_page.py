from __future__ import annotations

import re
from urllib.parse import unquote

import pandas as pd
import pytest

from walle.analysis.runs import BadInputError
from walle.analysis.writing import page


def test_cells_are_escaped() -> None:

    frame = pd.DataFrame({"a<b": ["<script>", 1.23456, float("nan")], "x": ["y" * 70, "", ""]})
    text = page.table(frame, "Every run")
    assert "<script>" not in text
    assert f"<td class=long>{'y' * 70}</td>" in text
    assert "a&lt;b" in text
    assert "<td>1.235</td>" in text
    (address,) = re.findall(r'download="every_run.csv" href="data:text/csv,(.*?)"', text)
    assert unquote(address) == frame.to_csv(index=False)
    assert "<td></td>" in text


def test_without_the_library_of_the_charts_the_fix_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "find_spec", lambda _: None)
    with pytest.raises(BadInputError, match="need plotly: pip install plotly"):
        page.document("a", [])
