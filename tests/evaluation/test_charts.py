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


def test_names_of_many_points_do_not_cover_each_other() -> None:
    points = {f"a model of many settings {n}": (1.0 + n % 7 / 50, 0.3 + n % 11 / 100) for n in range(50)}
    drawn = scatter({**points, "the best": (1.5, 0.6)}, "x", "y")
    named = re.findall(r'<text x="([0-9.]+)" y="([0-9.]+)" class="name">([^<]*)</text>', drawn)
    boxes = [(float(x), float(y) - 11, float(x) + len(name) * LABEL, float(y) + 3) for x, y, name in named]
    assert not any(
        a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for n, a in enumerate(boxes) for b in boxes[:n]
    )
    assert "the best" in [name for _, _, name in named]
    assert all(f"<title>{name}</title>" in drawn for name in points), "every point says what it is"
    assert drawn.count("<circle") == 51
