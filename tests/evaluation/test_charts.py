"""Charts: what stands at their axes can be read."""

import re

import pytest

from falconet.evaluation.charts import LABEL, LEFT, scatter

TITLE = 16  # how far the turned title of the axis reaches into the drawing


@pytest.mark.parametrize(
    "top", [0.0004, 0.0031, 0.0101, 0.021, 0.09, 0.1001, 0.2, 0.239, 0.25, 0.37, 0.45, 0.61, 0.99, 1.0]
)
def test_ticks_are_exact_and_leave_the_title_alone(top: float) -> None:
    drawn = scatter({"one": (1.0, top), "other": (2.0, top / 2)}, "x", "y")
    ticks = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="end">([^<]*)</text>', drawn)
    assert len(ticks) == 5
    steps = [float(text) for _, text in ticks]
    assert steps == pytest.approx([steps[-1] * part / 4 for part in range(5)], rel=1e-9)
    assert steps[-1] >= top
    assert all(float(end) - len(text) * LABEL >= TITLE for end, text in ticks)
    assert all(float(end) < LEFT for end, _ in ticks)
