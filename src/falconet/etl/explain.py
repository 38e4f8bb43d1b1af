"""What a workflow costs: its steps one by one on real rows, with the passes over the data that a fit takes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from falconet.compute.engine import collect
from falconet.compute.exchange import Source
from falconet.etl.dataset import first_rows
from falconet.etl.fit import Inputs, Regroup, bind_step, schedule
from falconet.etl.op import Group, KeyedOp, StatOp
from falconet.etl.plan import Described, Given, Plan, Ref, Step, apply, numbered, run
from falconet.etl.table import plain
from falconet.progress import aligned


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One step on the rows it was tried on."""

    step: int
    operator: str
    columns: tuple[str, ...]
    fit_pass: int | None
    """The pass over the data in which it is fitted, from 1 on; None for what is not fitted."""
    rows: int
    """Rows that come out."""
    fit_seconds: float
    seconds: float
    memory: int
    """Bytes of the columns it makes."""
    state: int
    """Bytes of what it has learned."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The cost of each step of a workflow; print it for a table."""

    rows: int
    """The rows of the data."""
    tried: int
    """The rows that the steps were tried on: the first ones."""
    passes: int
    """How often a fit reads the data."""
    regroupings: int
    """How often rows go through files to bring keys together."""
    steps: tuple[Cost, ...]

    def __str__(self) -> str:
        head = ("step", "operator", "columns", "pass", "rows", "fit s", "transform s", "columns MB", "state MB")
        lines = [head, *(_cells(cost) for cost in self.steps)]
        seconds = sum(cost.seconds + cost.fit_seconds for cost in self.steps)
        note = f"{self.tried:,} of {self.rows:,} rows tried in {seconds:.2f} s"
        passes = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        keys = "1 regrouping" if self.regroupings == 1 else f"{self.regroupings} regroupings"
        plan = f"fit: {passes} over the data, {keys} by key"
        return "\n".join([aligned(lines), note, plan])


def explain(plan: Plan, parts: Sequence[Source], inputs: Inputs, tried: int) -> Explanation:
    """Every step on the first `tried` rows: fitted there, then applied."""
    frame = first_rows(parts, tried)
    given = Given.of(inputs)
    nothing = Plan((), tuple((name, (0, name)) for name in inputs))
    start = run(nothing, {}, numbered(plain(frame.lazy()), [step.op for step in plan.steps]), given)
    state = Described(collect(start.frame).lazy(), start.columns, start.has_row)
    moves = schedule(plan)
    passes = [move for move in moves if not isinstance(move, Regroup)]
    costs = []
    for i, step in enumerate(plan.steps):
        later = {ref for other in plan.steps[i + 1 :] for ref in (*other.reads, *other.learns)}
        later |= {ref for _, ref in plan.outputs}
        states, fit_seconds = _fitted(step, state)
        started = time.perf_counter()
        made = apply(state, step, bind_step(step, states), later)
        done = collect(made.frame)
        seconds = time.perf_counter() - started
        new = [name for name in done.columns if name.startswith(f"__{step.id}__/")]
        costs.append(
            Cost(
                step=step.id,
                operator=type(step.op).__name__,
                columns=tuple(step.makes),
                fit_pass=next((n for n, steps in enumerate(passes, 1) if step in steps), None),
                rows=done.height,
                fit_seconds=fit_seconds,
                seconds=seconds,
                memory=int(done.select(new).estimated_size()),
                state=int(sum(frame.estimated_size() for frame in states.values())),
            )
        )
        state = Described(done.lazy(), made.columns, made.has_row)
    return Explanation(
        rows=sum(part.rows for part in parts),
        tried=frame.height,
        passes=len(passes),
        regroupings=sum(isinstance(step.op, KeyedOp) for step in plan.steps),
        steps=tuple(costs),
    )


def _fitted(step: Step, state: Described) -> tuple[Mapping[tuple[int, Group], pl.DataFrame], float]:
    """The states of a step on these rows, and how long that took."""
    if not isinstance(step.op, StatOp):
        return {}, 0.0
    started = time.perf_counter()
    read: Sequence[Ref] = (*step.reads, *step.learns)
    frame = state.select((ref[1], ref) for ref in dict.fromkeys(read))
    found = {(step.id, group): step.op.merge([collect(step.op.partial(frame, group))]) for group in step.states}
    return found, time.perf_counter() - started


def _cells(cost: Cost) -> tuple[str, ...]:
    columns = ", ".join(cost.columns)
    return (
        str(cost.step),
        cost.operator,
        columns if len(columns) <= 40 else f"{columns[:37]}…",
        str(cost.fit_pass or ""),
        f"{cost.rows:,}",
        f"{cost.fit_seconds:.3f}" if cost.fit_pass else "",
        f"{cost.seconds:.3f}",
        f"{cost.memory / 1e6:.1f}",
        f"{cost.state / 1e6:.1f}" if cost.fit_pass else "",
    )
