"""Fitting a plan: every statistic that can be made in one pass over the data is made in one scan of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from falconet.compute.engine import collect, collect_all
from falconet.compute.exchange import Source
from falconet.compute.executor import ROW, Executor, reading
from falconet.errors import SchemaError
from falconet.etl.fold import Placed, fold, values_of
from falconet.etl.op import Group, KeyedOp, Op, StatOp
from falconet.etl.plan import Bound, Described, Given, Plan, Ref, Step, asks_row, needed_by, numbered, run, where
from falconet.etl.spill import learn
from falconet.etl.stages import Stage, pass_by, stage_folder
from falconet.etl.table import plain
from falconet.progress import progress
from falconet.schema import Column

COUNT = "__count__"
States = Mapping[tuple[int, Group], pl.DataFrame]
Inputs = Mapping[str, Column]


def bind(plan: Plan, states: States, *, fitted_data: bool = False) -> dict[int, Bound]:
    """What each step applies, once the statistics are there."""
    return {step.id: bind_step(step, states, fitted_data=fitted_data) for step in plan.steps}


def bind_step(step: Step, states: States, *, fitted_data: bool = False) -> Bound:
    """What one step applies: fitted operators by their groups; others on all columns, or by group if they want that."""
    op = step.op
    if not isinstance(op, StatOp):
        return tuple((group, op) for group in (step.groups if op.grouped else (step.names,)))
    own = {group: states[(step.id, group)] for group in step.states}
    if fitted_data and op.is_out_of_fold:
        return tuple((group, op.finish_fitted(state)) for group, state in own.items())
    return tuple(op.finish_all(own).items())


def ops_of(bound: Mapping[int, Bound]) -> list[Op]:
    return [op for pairs in bound.values() for _, op in pairs]


def fit_columns(plan: Plan) -> tuple[str, ...]:
    """The columns of the data that a fit needs, those that only the fit reads included."""
    return tuple(name for id, name in needed_by(plan.steps, plan.outputs, fitting=True) if id == 0)


@dataclass(frozen=True)
class Regroup:
    """A keyed step, before which the data is brought together by key, and what is needed after it."""

    step: Step
    needed: tuple[Ref, ...]


def schedule(plan: Plan) -> list[tuple[Step, ...] | Regroup]:
    """What a fit does: passes over the data with the statistics each can make, and the regroupings between them."""
    learned = [step for step in plan.steps if isinstance(step.op, StatOp)]
    needed = {step.id for step in (*plan.part_of(needed_by(learned, fitting=True)).steps, *learned)}
    left = [step for step in plan.steps if step.id in needed]
    known = {step.id for step in left if not isinstance(step.op, StatOp)}
    have: tuple[Ref, ...] = ()
    moves: list[tuple[Step, ...] | Regroup] = []
    while left:
        if ready := _ready(plan, left, known, have):
            moves.append(ready)
            known.update(step.id for step in ready)
            left = [step for step in left if step not in ready]
            continue
        step, *left = left
        if isinstance(step.op, KeyedOp) and left:
            have = tuple(needed_by(left, fitting=True))
            moves.append(Regroup(step, have))
    return moves


def _ready(plan: Plan, left: Sequence[Step], known: set[int], have: Sequence[Ref]) -> tuple[Step, ...]:
    """The statistics before the next keyed step whose inputs can be made now."""
    ready = []
    for step in left:
        if isinstance(step.op, KeyedOp):
            break
        if isinstance(step.op, StatOp):
            before = plan.part_of((*step.reads, *step.learns), have).steps
            if all(other.id in known for other in before):
                ready.append(step)
    return tuple(ready)


def fit(
    plan: Plan, parts: Sequence[Source], inputs: Inputs, executor: Executor, known: States | None = None
) -> dict[tuple[int, Group], pl.DataFrame]:
    """The state of every statistic of the plan; grown from the `known` ones, if there are any."""
    states: dict[tuple[int, Group], pl.DataFrame] = {}
    bound = {step.id: bind_step(step, states) for step in plan.steps if not isinstance(step.op, StatOp)}
    stage = Stage(tuple(parts), Given.of(inputs))
    with stage_folder() as folder:
        moves = schedule(plan)
        for number, move in enumerate(moves, 1):
            if isinstance(move, Regroup):
                stage = pass_by(plan, move.step, move.needed, bound, stage, executor, folder)
                continue
            one = Pass(plan, move, dict(bound), stage.given)
            with progress("fitting", total=stage.rows) as task:
                found = learn(one, one.of, stage.parts, executor, folder / f"states-{len(states)}")
                task.advance(stage.rows)
            for step, key, state in zip(one.owners, one.keys, found, strict=True):
                assert isinstance(step.op, StatOp)
                states[key] = state if known is None else step.op.grow(known[key], state)
            if number < len(moves):  # large vocabularies are made ready where they are used, and only there
                bound.update((step.id, bind_step(step, states)) for step in move)
    return states


def dry_fit(plan: Plan, inputs: Inputs) -> dict[tuple[int, Group], pl.DataFrame]:
    """The states of no rows: what does not fit says so here, before any data is read."""
    states: dict[tuple[int, Group], pl.DataFrame] = {}
    bound: dict[int, Bound] = {}
    nothing = Given.of(inputs)
    for step in plan.steps:
        if isinstance(step.op, StatOp):
            rehearse(plan.part_of((*step.reads, *step.learns)), bound, inputs)
            one = Pass(plan, (step,), bound, nothing)
            try:
                found = one.merge([one.of_frame(nothing.empty)])
            except pl.exceptions.PolarsError as error:
                raise SchemaError(f"{where(step)}: {str(error).partition(chr(10))[0]}") from error
            states.update(zip(one.keys, found, strict=True))
        bound[step.id] = bind_step(step, states)
    rehearse(plan.only(name for name, _ in plan.outputs), bound, inputs)
    return states


def rehearse(plan: Plan, bound: Mapping[int, Bound], inputs: Inputs) -> Described:
    """The plan on no rows, computed, since some expressions say only then that a type does not fit."""
    state = run(plan, bound, _no_rows(bound, inputs), Given.of(inputs))
    try:
        state.frame.collect()
    except pl.exceptions.PolarsError as error:
        raise _misfit(plan, bound, inputs, error) from error
    return state


def dropped_outputs(plan: Plan, states: States, inputs: Inputs) -> list[str]:
    """The outputs that operators drop once they know what the fit says of their inputs, and what is made of them."""
    if all(type(step.op).drops is Op.drops for step in plan.steps):
        return []
    bound = bind(plan, states)
    columns = run(plan, bound, _no_rows(bound, inputs), Given.of(inputs), keep=True).columns
    gone: set[Ref] = set()
    for step in plan.steps:
        own = {name: columns[ref] for name, ref in zip(step.names, step.inputs, strict=True)}
        dropped = set(step.op.drops(own)) | {ref[1] for ref in step.reads if ref in gone}
        gone |= {(step.id, name) for name, made_from in step.makes.items() if dropped & set(made_from)}
    return [name for name, ref in plan.outputs if ref in gone]


def _misfit(plan: Plan, bound: Mapping[int, Bound], inputs: Inputs, error: Exception) -> SchemaError:
    """Which operator it was: the first one whose own outputs cannot be computed."""
    for step in plan.steps:
        part = plan.part_of((step.id, name) for name in step.makes)
        try:
            run(part, bound, _no_rows(bound, inputs), Given.of(inputs)).frame.collect()
        except pl.exceptions.PolarsError:
            return SchemaError(f"{where(step)}: {str(error).partition(chr(10))[0]}")
    return SchemaError(str(error))


def _no_rows(bound: Mapping[int, Bound], inputs: Inputs) -> pl.LazyFrame:
    return numbered(Given.of(inputs).empty, ops_of(bound))


@dataclass(frozen=True)
class Pass:
    """All statistics of one scan. Called on a part it gives their states; `merge` merges lists of states."""

    plan: Plan
    steps: tuple[Step, ...]
    bound: Mapping[int, Bound]
    given: Given

    @property
    def owners(self) -> list[Step]:
        return [step for step in self.steps for _ in step.states]

    @property
    def of(self) -> list[tuple[StatOp, Group]]:
        """Whose the states are."""
        return [(step.op, group) for step in self.steps if isinstance(step.op, StatOp) for group in step.states]

    @property
    def keys(self) -> list[tuple[int, Group]]:
        return [(step.id, group) for step in self.steps for group in step.states]

    def __call__(self, part: Source) -> list[pl.DataFrame]:
        with reading(f"`{part.path}`"):
            return self.of_frame(part.scan(row_numbers=asks_row(self._ops)))

    @property
    def _ops(self) -> list[Op]:
        return [step.op for step in self.steps] + ops_of(self.bound)

    def of_frame(self, frame: pl.LazyFrame) -> list[pl.DataFrame]:
        """The states of a frame: the columns they need are made once, then each is summed up."""
        refs = list(dict.fromkeys(ref for step in self.steps for ref in (*step.reads, *step.learns)))
        have = self.given.columns if self.given.labelled else ()
        plan = self.plan.part_of(refs, have)
        folded = fold(plan, self.bound, self.given, counted=[ref for ref in refs if self._only_counted(ref)])
        state = run(plan, folded.bound, numbered(plain(frame), self._ops), self.given)
        names = {ref: f"{i}" for i, ref in enumerate(refs)}
        made = state.select((name, ref) for ref, name in names.items())
        # What is only read, or found by its place, is read again for each statistic: that is cheaper than to hold it.
        is_cheap = all(isinstance(op, Placed) for pairs in (folded.bound[s.id] for s in plan.steps) for _, op in pairs)
        seen = made if is_cheap else collect(made).lazy()
        row = [ROW] if ROW in made.collect_schema() else []
        lazy = []
        for step in self.steps:
            assert isinstance(step.op, StatOp)
            read = dict.fromkeys((*step.reads, *step.learns))
            own = seen.select(*(pl.col(names[ref]).alias(ref[1]) for ref in read), *row)
            for group in step.states:
                values = folded.tables.get(step.ref(group[0]))
                if values is None:
                    lazy.append(step.op.partial(own, group))
                else:
                    lazy.append(step.op.partial_counted(values_of(own, group[0], values, COUNT), group, COUNT))
        return collect_all(lazy)

    def _only_counted(self, ref: Ref) -> bool:
        """Whether all that is asked of a column is how often its values are there."""
        for step in self.steps:
            op = step.op
            if ref not in (*step.reads, *step.learns):
                continue
            assert isinstance(op, StatOp)
            of = [group for group in step.states if ref[1] in group and step.ref(group[0]) == ref]
            if not op.is_counted or of != [(ref[1],)] or ref in (*step.also, *step.learns):
                return False
        return True

    def merge(self, many: Sequence[list[pl.DataFrame]]) -> list[pl.DataFrame]:
        ops = [step.op for step in self.owners]
        merged = []
        for op, *states in zip(ops, *many, strict=True):
            assert isinstance(op, StatOp)
            merged.append(op.merge(states))
        return merged
