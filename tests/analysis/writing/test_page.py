from __future__ import annotations

import pandas as pd

from walle.analysis.writing import page


def test_cells_are_escaped() -> None:

    text = page.table(pd.DataFrame({"a<b": ["<script>", 1.5, float("nan")]}))
    assert "<script>" not in text
    assert "a&lt;b" in text
    assert "<td>1.5</td>" in text
    assert "<td></td>" in text
