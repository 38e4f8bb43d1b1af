"""Workflow: a graph that has not seen data. `fit` gives a FittedWorkflow, which has, and never changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import polars as pl

from falconet.compute.engine import collect
from falconet.compute.executor import ROW, Executor, reading
from falconet.compute.local import LocalExecutor
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl import store
from falconet.etl.dataset import Dataset
from falconet.etl.draw import Drawing, draw
from falconet.etl.explain import Explanation, explain
from falconet.etl.fit import Inputs, States, bind, dropped_outputs, dry_fit, fit, fit_columns, ops_of, rehearse
from falconet.etl.graph import check_types, compile_graph, operators_of, raw_names
from falconet.etl.online import Online
from falconet.etl.op import StatOp
from falconet.etl.plan import Bound, Given, Plan, numbered, outputs_of, run, where
from falconet.etl.selector import as_node
from falconet.etl.table import as_frame, plain
from falconet.etl.transformed import Transformed
from falconet.etl.types import column_of, has_place
from falconet.io.artifact import write_artifact
from falconet.ops import Categories  # which registers every operator, for `load`
from falconet.progress import note
from falconet.schema import Column, Schema

KIND = "workflow"


class Workflow:
    """A plan of operators: `Workflow(["userId"] >> ops.Categorify())`, or a list of such nodes.

    >>> from falconet import ops
    >>> fitted = Workflow(["age"] >> ops.FillMissing(fill_val=1)).fit(Dataset(pl.DataFrame({"age": [7, None]})))
    >>> fitted.transform(pl.DataFrame({"age": [None, 3]}))["age"].to_list()
    [1, 3]
    """

    def __init__(self, output: Any) -> None:
        self._output = as_node(output)
        for op in operators_of(self._output):
            store.check(op.settled(None))

    def fit(self, dataset: Dataset, executor: Executor | None = None) -> FittedWorkflow:
        """What the data says, as a new object; the same bits however the data is cut and whoever does the work.

        Raises SchemaError for columns that are missing or do not fit before any data is read, DataError for data
        without rows where there is something to learn.
        """
        plan, inputs = self._plan(dataset)
        dry_fit(plan, inputs)
        _check_rows(plan, dataset)
        fitted = FittedWorkflow(
            plan=plan,
            inputs=inputs,
            states=fit(plan, dataset.parts(), inputs, executor or LocalExecutor()),
            rows=dataset.rows,
            fitted_on=dataset.fingerprint,
            executor=executor,
        )
        dropped = dropped_outputs(plan, fitted.states, inputs)
        if not dropped:
            return fitted
        if len(dropped) == len(plan.outputs):
            raise DataError(
                f"no output is left: what the data says leaves out {', '.join(dropped)}",
                hint="`DropLowCardinality` with a smaller `min_cardinality` keeps some",
            )
        note(f"fit: left out, because of what the data says: {', '.join(dropped)}")
        return fitted.prune(without=dropped)

    def fit_transform(self, dataset: Dataset, executor: Executor | None = None) -> Transformed:
        """`fit`, then `transform` of the same data."""
        return self.fit(dataset, executor).transform(dataset)

    def describe(self, dataset: Dataset) -> Schema:
        """The schema of the outputs for this data, without reading it. Cardinalities, which only data tells: None."""
        plan, inputs = self._plan(dataset)
        fitted = FittedWorkflow(plan=plan, inputs=inputs, states=dry_fit(plan, inputs))
        made = {name for name, ref in plan.outputs if ref[0] != 0}
        return Schema(tuple(replace(c, cardinality=None) if c.name in made else c for c in fitted.schema))

    def graph(self, dataset: Dataset | None = None) -> Drawing:
        """A picture of its operators: printed as text, shown in a notebook, saved as .svg or .png.

        A graph that selects columns by tags or "*" needs the data set. Reads no rows.
        """
        if dataset is not None:
            return draw(self._plan(dataset)[0])
        names = raw_names(self._output)
        return draw(compile_graph(self._output, described(pl.Schema(dict.fromkeys(names, pl.Null())), names)))

    def explain(self, dataset: Dataset, rows: int = 1_000_000) -> Explanation:
        """What each operator costs on the first `rows` rows, and the passes over the data that a fit takes."""
        plan, inputs = self._plan(dataset)
        dry_fit(plan, inputs)
        _check_rows(plan, dataset)
        return explain(plan, dataset.parts(), inputs, rows)

    def _plan(self, dataset: Dataset) -> tuple[Plan, dict[str, Column]]:
        if not isinstance(dataset, Dataset):
            raise ConfigError(f"fit needs a Dataset, not a {type(dataset).__name__}", hint="fit(Dataset(...))")
        check_types(self._output, {name: dtype for name, dtype in dataset.schema.items() if not has_place(dtype)})
        raw = describe_data(dataset)
        plan = compile_graph(self._output, raw)
        return plan, {name: raw[name] for name in fit_columns(plan)}

    @staticmethod
    def load(path: str | Path) -> FittedWorkflow:
        """The saved workflow: `FittedWorkflow.load`."""
        return FittedWorkflow.load(path)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FittedWorkflow:
    """A workflow that has seen data: `transform`, `save`, `prune`, `online`."""

    plan: Plan
    inputs: Inputs
    states: States
    rows: int = 0
    """The rows it has seen."""
    fitted_on: str | None = None
    executor: Executor | None = None

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that a transform needs."""
        return self._applied.input_columns

    @cached_property
    def schema(self) -> Schema:
        """The columns that come out of data like that of the fit."""
        return self._schema_for(self.inputs)

    @overload
    def transform(self, data: Dataset, *, out_of_fold: bool = True) -> Transformed: ...

    @overload
    def transform(self, data: Any, *, out_of_fold: bool = True) -> pl.DataFrame: ...

    def transform(self, data: Any, *, out_of_fold: bool = True) -> Transformed | pl.DataFrame:
        """A Dataset lazily; a frame (Polars, LazyFrame, pandas, Arrow) at once, as a Polars frame in the same order.

        On the very data of the fit, operators that have them use statistics that leave a row's own fold out;
        `out_of_fold=False` turns that off. Raises ColumnNotFoundError and SchemaError before data is read.
        """
        if isinstance(data, Dataset):
            own = out_of_fold and data.fingerprint == self.fitted_on
            names = [type(s.op).__name__ for s in self.plan.steps if isinstance(s.op, StatOp) and s.op.is_out_of_fold]
            if own and names:
                note(f"transform: this is the data of the fit, so {', '.join(names)} leaves out each row's own fold")
            bound = bind(self._applied, self.states, fitted_data=True) if own and names else self._bound
            given = self._given(data.schema)
            schema = self._schema_for(given)
            return Transformed(self._applied, bound, data, given, schema, self.executor)
        frame = data if isinstance(data, pl.LazyFrame) else as_frame(data).lazy()
        given = self._given(frame.collect_schema())
        frame = numbered(plain(frame.drop(ROW, strict=False)), ops_of(self._bound))
        with reading("the frame"):
            made = run(self._applied, self._bound, frame, Given.of(given)).select(self.plan.outputs)
            return collect(made.drop(ROW, strict=False))

    def partial_fit(self, dataset: Dataset, executor: Executor | None = None) -> FittedWorkflow:
        """What it knows and what more data says, as a new object; codes that were given stay what they are.

        The rows count on from those it has seen, as if both data sets were one. Raises as `fit` does, and ConfigError
        for a pruned workflow whose statistics read columns that pruning left out.
        """
        executor = executor or self.executor
        for step in self.plan.steps:
            left_out = {name for group in step.states for name in group} - {name for _, name in step.reads}
            if isinstance(step.op, StatOp) and (left_out or (step.op.learns and not step.learns)):
                raise ConfigError(f"{where(step)} was pruned and cannot learn", hint="partial_fit the whole workflow")
        inputs = self._like(dataset.schema, self.inputs, where="the data to learn from")
        _check_rows(self.plan, dataset)
        parts = [replace(part, first_row=part.first_row + self.rows) for part in dataset.parts()]
        states = fit(self.plan, parts, inputs, executor or LocalExecutor(), self.states)
        return replace(self, states=states, rows=self.rows + dataset.rows, fitted_on=None, executor=executor)

    def prune(
        self, outputs: Iterable[str] | None = None, *, tags: Iterable[str] | None = None, without: Iterable[str] = ()
    ) -> FittedWorkflow:
        """What the named outputs, or those with any of the tags, need: the label off, the user part, the item part.

        `without` leaves out further outputs. Raises ColumnNotFoundError for a name that no output has.
        """
        names = list(self.schema.names)
        if outputs is not None and tags is not None:
            raise ConfigError("prune by names and by tags", hint="give `outputs` or `tags`")
        if outputs is not None:
            wanted = [outputs] if isinstance(outputs, str) else list(outputs)
            for name in wanted:
                if name not in names:
                    raise ColumnNotFoundError.of(name, names, where="the workflow's output")
            names = wanted
        if tags is not None:
            asked = {str(tag) for tag in ([tags] if isinstance(tags, str) else tags)}
            names = [column.name for column in self.schema if column.tags & asked]
        names = [name for name in names if name not in set(without)]
        if not names:
            raise ConfigError("pruning leaves no outputs", hint=f"the workflow has {', '.join(self.schema.names)}")
        plan = self.plan.only(names)
        keys = {(step.id, group) for step in plan.steps for group in step.states}
        return replace(
            self,
            plan=plan,
            inputs={name: self.inputs[name] for name in plan.input_columns},
            states={key: state for key, state in self.states.items() if key in keys},
        )

    def inverse(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with values in place of the codes of its categorical columns (lists too), found by their domain.

        Null for padding, null and out of vocabulary. Columns that no Categorify made stay as they are.
        """
        exprs = []
        for column in self.schema:
            if column.name in frame.columns and (found := self._categories(column)):
                x = pl.element() if column.is_list else pl.col(column.name)
                value = pl.coalesce(*(op.inverse(x) for op in found)) if len(found) > 1 else found[0].inverse(x)
                exprs.append(pl.col(column.name).list.eval(value) if column.is_list else value.alias(column.name))
        return frame.with_columns(exprs)

    def vocabulary(self, column: str) -> pl.DataFrame:
        """The `code`, `value` and `count` of each value of a categorical column, as `Categorify(vocabs=...)` takes it.

        Raises ColumnNotFoundError for a name that no output has, SchemaError where no Categorify made the column.
        """
        if column not in self.schema.names:
            raise ColumnNotFoundError.of(column, self.schema.names, where="the workflow's output")
        if not (found := self._categories(self.schema[column])):
            raise SchemaError(f"`{column}` has no vocabulary", hint="only what Categorify made has one")
        return found[-1].vocabulary()

    def _categories(self, column: Column) -> list[Categories]:
        """The vocabularies that may have made a column of codes: those of its domain, of which the one that has its
        name is the one. Vocabularies of one table have different codes. Raises SchemaError where their values are of
        different types.
        """
        pairs = [pair for bound in self._bound.values() for pair in bound]
        found = [(group, op) for group, op in pairs if isinstance(op, Categories) and op.domain == column.domain]
        own = [op for group, op in found if column.name in op.sources(group)]
        if own or not found:
            return own[-1:]
        types = {op.values.dtype for _, op in found}
        if len(types) > 1:
            names = ", ".join(f"`{op.name}`" for _, op in found)
            raise SchemaError(
                f"`{column.name}` may hold codes of {names}, which share one table: its name does not say which",
                hint="inverse the columns before they are renamed",
            )
        return [op for _, op in found]

    def graph(self) -> Drawing:
        """A picture of its operators: printed as text, shown in a notebook, saved as .svg or .png."""
        return draw(self.plan)

    def online(self) -> Online:
        """The workflow for a few rows at a time, in plain Python."""
        return Online(self._applied, self._bound, self.inputs)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a folder that can be moved and is read without running code: graph.json and Parquet."""
        with write_artifact(path, KIND, overwrite=overwrite) as draft:
            store.save(draft.path, store.Saved(self.plan, self.inputs, self.states, self.rows, self.fitted_on))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> FittedWorkflow:
        """Read a saved workflow. Raises ArtifactError for what is missing, damaged, of another format, or unsafe."""
        saved = store.load(Path(path))
        return cls(
            plan=saved.plan, inputs=saved.inputs, states=saved.states, rows=saved.rows, fitted_on=saved.fitted_on
        )

    @cached_property
    def _applied(self) -> Plan:
        """The steps of a transform: all but those that only a fit needs."""
        return self.plan.only(name for name, _ in self.plan.outputs)

    @cached_property
    def _bound(self) -> dict[int, Bound]:
        return bind(self._applied, self.states)

    def _given(self, schema: pl.Schema) -> dict[str, Column]:
        """The data's columns that are needed, as the fit described them but with the types they have here."""
        return self._like(schema, self.input_columns, where="the data to transform")

    def _like(self, schema: pl.Schema, names: Iterable[str], where: str) -> dict[str, Column]:
        given = {}
        for name in names:
            if name not in schema:
                raise ColumnNotFoundError.of(name, schema, where=where)
            found = column_of(name, schema[name])
            given[name] = replace(self.inputs[name], dtype=found.dtype, list=found.list)
        return given

    def _schema_for(self, given: Inputs) -> Schema:
        state = rehearse(self._applied, self._bound, given)
        return Schema(tuple(outputs_of(self.plan, state).values()))

    def __repr__(self) -> str:
        return f"FittedWorkflow({', '.join(self.input_columns)} -> {', '.join(name for name, _ in self.plan.outputs)})"


def _check_rows(plan: Plan, dataset: Dataset) -> None:
    if dataset.rows:
        return
    for step in plan.steps:
        if isinstance(step.op, StatOp) and not all(step.op.is_given(group) for group in step.states):
            raise DataError(f"cannot fit on no rows: {where(step)} learns from them", hint="the data set is empty")


def describe_data(dataset: Dataset) -> dict[str, Column]:
    """The data's columns: tags and sizes from the footer where falconet wrote it, else from the types alone.

    Those whose types no schema can describe are left out.
    """
    known = dataset.described
    found = described(dataset.schema, [name for name, dtype in dataset.schema.items() if has_place(dtype)])
    return {
        name: replace(known[name], dtype=column.dtype, list=column.list, source=(name,)) if name in known else column
        for name, column in found.items()
    }


def described(schema: pl.Schema, names: Iterable[str]) -> dict[str, Column]:
    """The columns of these names that are there, by their types."""
    return {name: replace(column_of(name, schema[name]), source=(name,)) for name in names if name in schema}
