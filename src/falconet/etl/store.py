"""A fitted workflow as a folder: graph.json, and Parquet for states, join tables and the probes of expressions.

Nothing in it is code. Expressions are walked against the allow-list before Polars sees them; then their answers to the
probe rows that were saved with them must come out equal, so another version of Polars cannot change a feature silently.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from falconet.compute.exchange import writing
from falconet.errors import ArtifactError, ConfigError, FalconetError
from falconet.etl import expressions
from falconet.etl.fit import Inputs, States, bind, rehearse
from falconet.etl.op import OPS, Group, Op
from falconet.etl.plan import Plan, Step
from falconet.etl.probes import ANSWER, answers, probe_frames
from falconet.etl.selector import Node, names_of
from falconet.io.artifact import read_artifact
from falconet.schema import Column

FORMAT = 2
GRAPH = "graph.json"
_TIME, _DATE, _EXPR, _TABLE = "$time", "$date", "$expression", "$table"


@dataclass(frozen=True)
class Saved:
    """What a fitted workflow is on disk."""

    plan: Plan
    inputs: Inputs
    states: States
    rows: int
    fitted_on: str | None


def check(op: Op) -> None:
    """Raise ConfigError for an operator that could not be saved, when the graph is built."""
    name = type(op).__name__
    if name not in OPS or OPS[name] is not type(op):
        raise ConfigError(f"`{name}` is not a registered operator", hint="decorate its class with @OPS.register()")
    _encode_op(op, {}, "")


def save(folder: Path, saved: Saved) -> None:
    """Write graph.json and what it names into a folder."""
    plan, inputs, states = saved.plan, saved.inputs, saved.states
    tables: dict[str, pl.DataFrame] = {}
    steps = []
    for step in plan.steps:
        entry: dict[str, Any] = {"id": step.id, **_encode_op(step.op, tables, str(step.id))}
        entry["inputs"] = [list(ref) for ref in step.inputs]
        entry["groups"] = [list(group) for group in step.groups]
        entry["also"] = [list(ref) for ref in step.also]
        entry["learns"] = [list(ref) for ref in step.learns]
        entry["states"] = []
        for group in step.states:
            name = _file(f"{step.id}-{'_'.join(group)}", tables)
            tables[name] = states[(step.id, group)]
            entry["states"].append({"columns": list(group), "file": name})
        entry["probes"] = []
        for frame in _probes(plan, step, inputs, states):
            name = _file(f"{step.id}-probe", tables)
            tables[name] = frame
            entry["probes"].append(name)
        steps.append(entry)
    graph = {
        "format": FORMAT,
        "polars": pl.__version__,
        "fitted_on": saved.fitted_on,
        "rows": saved.rows,
        "inputs": [column.to_dict() for column in inputs.values()],
        "steps": steps,
        "outputs": [[name, list(ref)] for name, ref in plan.outputs],
    }
    (folder / "state").mkdir()
    for name, table in tables.items():
        # Row groups of one size, so that the bytes do not depend on how the table lies in memory.
        with writing(folder / name):
            table.write_parquet(folder / name, compression="zstd", statistics=False, row_group_size=131_072)
    with writing(folder / GRAPH):
        (folder / GRAPH).write_text(json.dumps(graph, indent=1))


def load(path: Path) -> Saved:
    """What `save` wrote. Raises ArtifactError for what is missing, damaged, of another format, or unsafe."""
    manifest = read_artifact(path, "workflow")
    if GRAPH not in manifest.files:
        raise ArtifactError(f"`{path / GRAPH}` is missing")
    try:
        graph = json.loads((path / GRAPH).read_text())
        if graph["format"] != FORMAT:
            raise ArtifactError(f"`{path / GRAPH}` has format {graph['format']}, this version reads {FORMAT}")
        reader = _Reader(path, frozenset(manifest.files), str(graph["polars"]))
        states: dict[tuple[int, Group], pl.DataFrame] = {}
        steps = []
        for entry in graph["steps"]:
            step = _step(entry, reader.op(entry))
            for group, state in zip(step.states, entry["states"], strict=True):
                states[(step.id, group)] = reader.table(state["file"])
            steps.append(step)
        plan = Plan(tuple(steps), tuple((str(name), (int(id), str(inner))) for name, (id, inner) in graph["outputs"]))
        columns = {entry["name"]: Column.from_dict(entry) for entry in graph["inputs"]}
        saved = Saved(plan, columns, states, int(graph["rows"]), graph["fitted_on"])
        applied = plan.only(name for name, _ in plan.outputs)
        rehearse(applied, bind(applied, states), columns)
        for entry in graph["steps"]:
            reader.verify(entry)
    except ArtifactError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        StopIteration,
        OverflowError,
        RecursionError,
        FalconetError,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
    ) as error:
        raise ArtifactError(
            f"`{path / GRAPH}` is damaged: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
            hint="write the workflow again",
        ) from error
    return saved


def _step(entry: Mapping[str, Any], op: Op) -> Step:
    inputs, also, learns = (
        tuple((int(id), str(name)) for id, name in entry[key]) for key in ("inputs", "also", "learns")
    )
    groups = tuple(tuple(str(name) for name in group) for group in entry["groups"])
    if {name for group in groups for name in group} != {name for _, name in inputs}:
        raise ValueError(f"the groups {groups} are not the inputs {inputs}")
    states = tuple(tuple(str(name) for name in state["columns"]) for state in entry["states"])
    return Step(int(entry["id"]), op, inputs, groups, also, learns, states)


class _Reader:
    """Reads what graph.json names."""

    def __init__(self, path: Path, files: frozenset[str], polars: str) -> None:
        self._path, self._files, self._polars = path, files, polars
        self._expressions: dict[int, list[pl.Expr]] = {}

    def op(self, entry: Mapping[str, Any]) -> Op:
        name = entry["op"]
        if name not in OPS:
            raise ArtifactError(
                f"`{self._path / GRAPH}` has an operator `{name}` that is not known here",
                hint="import the module that registers it before loading",
            )
        found: list[pl.Expr] = []
        fields = {key: self._value(value, found) for key, value in entry["fields"].items()}
        self._expressions[entry["id"]] = found
        return OPS[name](**fields)

    def _value(self, value: Any, found: list[pl.Expr]) -> Any:
        if isinstance(value, list):
            return tuple(self._value(x, found) for x in value)
        if not isinstance(value, dict):
            return value
        if set(value) == {_EXPR}:
            try:
                found.append(expressions.from_tree(value[_EXPR]))
            except expressions.ForbiddenError as error:
                raise ArtifactError(f"`{self._path / GRAPH}` has an expression that is not allowed: {error}") from error
            return found[-1]
        if set(value) == {_TABLE}:
            return self.table(value[_TABLE])
        if set(value) == {_TIME}:
            return dt.datetime.fromisoformat(value[_TIME])
        if set(value) == {_DATE}:
            return dt.date.fromisoformat(value[_DATE])
        return {key: self._value(x, found) for key, x in value.items()}

    def table(self, name: str) -> pl.DataFrame:
        if name not in self._files:
            raise ArtifactError(f"`{self._path / GRAPH}` names a file `{name}` that is not in its folder")
        try:
            return pl.read_parquet(self._path / name, glob=False)
        except pl.exceptions.PolarsError as error:
            raise ArtifactError(f"`{self._path / name}` is no whole Parquet file: {error}") from error

    def verify(self, entry: Mapping[str, Any]) -> None:
        """Raise ArtifactError where an expression answers its probe rows differently from when it was saved."""
        names = entry["probes"]
        saved = self._expressions[entry["id"]]
        if bool(names) != bool(saved):
            raise ArtifactError(f"`{self._path / GRAPH}` has expressions without probe rows")
        for name in names:
            frame = self.table(name)
            for number, expr in enumerate(saved):
                answer = f"{ANSWER}{number}"
                now = frame.with_columns(expr.alias(answer))[answer]  # beside the rows: it may be a constant
                if now.dtype != frame[answer].dtype or not now.equals(frame[answer], null_equal=True):
                    raise ArtifactError(
                        f"`{self._path / GRAPH}`: an expression of {entry['op']} gives other values than when saved",
                        hint=f"saved with Polars {self._polars}, this is {pl.__version__}; fit the workflow again",
                    )


def _probes(plan: Plan, step: Step, inputs: Inputs, states: States) -> list[pl.DataFrame]:
    exprs = [value for value in _fields(step.op).values() if isinstance(value, pl.Expr)]
    if not exprs:
        return []
    before = plan.part_of(step.reads)
    described = rehearse(before, bind(before, states), inputs).columns
    columns = {ref[1]: described[ref] for ref in step.reads}
    return [answers(frame, exprs) for frame in probe_frames(exprs, step.names, columns)]


def _encode_op(op: Op, tables: dict[str, pl.DataFrame], prefix: str) -> dict[str, Any]:
    fields = {}
    for name, value in _fields(op).items():
        try:
            fields[name] = _encode(value, tables, prefix)
        except TypeError:
            raise ConfigError(
                f"`{type(op).__name__}` cannot be saved: its `{name}` is a {type(value).__name__}",
                hint="settings are numbers, strings, times, lists, mappings, Polars expressions and frames",
            ) from None
    return {"op": type(op).__name__, "fields": fields}


def _fields(op: Op) -> dict[str, Any]:
    if not dataclasses.is_dataclass(op):
        raise ConfigError(f"`{type(op).__name__}` is not a dataclass", hint="@dataclass(frozen=True, kw_only=True)")
    return {field.name: getattr(op, field.name) for field in dataclasses.fields(op) if field.init}


def _encode(value: Any, tables: dict[str, pl.DataFrame], prefix: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, (list, tuple)):
        return [_encode(x, tables, prefix) for x in value]
    if isinstance(value, Mapping):
        return {str(key): _encode(x, tables, prefix) for key, x in value.items()}
    if isinstance(value, dt.datetime):
        return {_TIME: value.isoformat()}
    if isinstance(value, dt.date):
        return {_DATE: value.isoformat()}
    if isinstance(value, Node):
        return list(names_of(value))  # a loaded workflow has its graph, and needs the names alone
    if isinstance(value, pl.Expr):
        return {_EXPR: expressions.to_tree(value)}
    if isinstance(value, pl.DataFrame):
        name = _file(f"{prefix}-table", tables)
        tables[name] = value
        return {_TABLE: name}
    raise TypeError(type(value).__name__)


def _file(stem: str, taken: Mapping[str, Any]) -> str:
    """A free name in `state/` that every system allows, also where upper and lower case are one."""
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in stem)[:120]
    used = {name.lower() for name in taken}
    name, number = f"state/{safe}.parquet", 2
    while name.lower() in used:
        name, number = f"state/{safe}-{number}.parquet", number + 1
    return name
