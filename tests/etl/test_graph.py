"""Graphs: how nodes are put together, and what is refused when they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl.graph import compile_graph
from falconet.etl.op import ColumnOp
from falconet.etl.selector import Node, as_node
from falconet.schema import Column, Tag

RAW = {name: Column(name=name, dtype="int64", tags=frozenset(tags)) for name, tags in
       {"a": {"user"}, "b": {"item"}, "c": {"item"}, "d": set()}.items()}  # fmt: skip


def names(node: object) -> list[str]:
    return [name for name, _ in compile_graph(as_node(node), RAW).outputs]


def test_composition_does_not_change_the_parts() -> None:
    a = fl.ColumnSelector(["a"])
    a >> ops.Normalize()
    assert a == fl.ColumnSelector(["a"])
    assert a.columns == ("a",)


def test_lists_and_plus_mean_and() -> None:
    x = ["a"] >> ops.Categorify()
    assert names(x + ["b"]) == ["a", "b"]  # noqa: RUF005
    assert names(["b"] + x) == ["b", "a"]  # noqa: RUF005
    assert names([x, "b", "c"]) == ["a", "b", "c"]
    assert names("a" >> ops.Categorify()) == ["a"]


def test_minus_and_brackets_select() -> None:
    x = ["a", "b", "c"] >> ops.Categorify()
    assert names(x - ["b"]) == ["a", "c"]
    assert names(x - "b") == ["a", "c"]
    assert names(x["c"]) == ["c"]
    assert names(x[["c", "a"]]) == ["c", "a"]


def test_columns_by_tag_and_all_columns() -> None:
    assert names(fl.ColumnSelector(tags=[Tag.ITEM]) >> ops.Categorify()) == ["b", "c"]
    assert names(fl.ColumnSelector(tags=["item", "user"])) == ["a", "b", "c"]
    assert names(fl.ColumnSelector("*") - ["d"]) == names(fl.ColumnSelector(["*"]) - ["d"]) == ["a", "b", "c"]
    assert names(["*"] >> ops.Categorify()) == ["a", "b", "c", "d"]
    with pytest.raises(ColumnNotFoundError, match="the data has no columns tagged session"):
        names(fl.ColumnSelector(tags="session"))


def test_a_nested_list_is_a_group() -> None:
    (step,) = compile_graph([["a", "b"], "c"] >> ops.Categorify(), RAW).steps
    assert step.states == (("a", "b"), ("c",))
    (step,) = compile_graph(fl.ColumnSelector("*")[["a", ["b", "c"]]] >> ops.Categorify(), RAW).steps
    assert step.states == (("a",), ("b", "c"))
    assert compile_graph([["a", "b"], "c"] >> ops.AddTags("x") >> ops.Categorify(), RAW).steps[1].states == (
        ("a", "b"),
        ("c",),
    )


def test_an_operator_without_columns_says_to_parenthesise() -> None:
    with pytest.raises(ConfigError, match=r"hint: put parentheses: `\(columns >> Categorify"):
        ["a"] >> ops.Categorify() + (["b"] >> ops.Normalize())
    with pytest.raises(ConfigError, match="put parentheses"):
        ["a"] + ops.Categorify()  # noqa: RUF005
    with pytest.raises(ConfigError, match="put parentheses"):
        ["a", "b"] >> ops.Categorify() - ["b"]


def test_a_class_for_an_operator_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"write `>> Categorify\(\.\.\.\)`"):
        (["a"] >> ops.AddTags("x")) >> ops.Categorify  # type: ignore[operator]


def test_two_branches_with_one_output_name_are_refused_naming_both() -> None:
    x = ["a"] >> ops.Categorify()
    with pytest.raises(
        ConfigError, match=r"both `\['a'\] >> Categorify` and `\['a'\] >> Normalize` produce a column `a`"
    ):
        x + (["a"] >> ops.Normalize())
    assert names(x + x) == ["a"]


def test_the_same_name_behind_tags_is_refused_before_data_is_read() -> None:
    node = (fl.ColumnSelector(tags=["user"]) >> ops.Categorify()) + (["a"] >> ops.Normalize())
    with pytest.raises(ConfigError, match="produce a column `a`"):
        compile_graph(node, RAW)


@pytest.mark.parametrize("op", [ops.Filter(lambda row: row["a"] > 1), ops.Dropna()], ids=["Filter", "Dropna"])
def test_branches_with_other_rows_are_refused_naming_both(op: ops.FrameOp) -> None:
    with pytest.raises(ConfigError, match=r"`\['a'\] >> \w+` and `\['b'\]` may have different rows"):
        (["a"] >> op) + ["b"]
    with pytest.raises(ConfigError, match="may have different rows"):
        (["a"] >> op) + (["a"] >> op)["a"]


def test_branches_behind_one_filter_stand_side_by_side() -> None:
    kept = ["a", "b"] >> ops.Filter(lambda row: row["a"] > 1)
    node = (kept["a"] >> ops.Categorify()) + (kept["b"] >> ops.Normalize())
    frame = pl.DataFrame({"a": [1, 2, 3, 3], "b": [1, 2, 4, 6]})
    got = fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)
    assert got["a"].to_list() == [4, 3, 3]
    assert got["b"].to_list() == [-1.0, 0.0, 1.0]


def test_a_shared_node_runs_once() -> None:
    x = ["a", "b"] >> ops.Categorify()
    plan = compile_graph((x["a"] >> ops.AddTags("one")) + (x["b"] >> ops.AddTags("two")), RAW)
    assert [type(step.op).__name__ for step in plan.steps].count("Categorify") == 1


def test_a_column_that_is_not_there_suggests_the_close_name() -> None:
    x = ["user_id", "item_id"] >> ops.Categorify()
    with pytest.raises(ColumnNotFoundError, match=r"(?s)no column `userid`.*did you mean `user_id`"):
        x["userid"]


def test_a_column_selected_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="column `a` is selected twice"):
        ["a", "b", "a"] >> ops.Categorify()
    with pytest.raises(ConfigError, match="column `a` is selected twice"):
        [["a", "b", "a"]] >> ops.Categorify()


def test_a_column_may_be_in_several_groups_unless_they_share_vocabularies() -> None:
    node = ["a", ["a", "b"]] >> ops.Categorify(encode_type="combo")
    assert node.columns == ("a", "a_b")
    with pytest.raises(ConfigError, match="`a` the codes of two vocabularies"):
        ["a", ["b", "a"]] >> ops.Categorify()


def test_a_join_that_would_hide_a_column_is_refused() -> None:
    table = pl.DataFrame({"a": [1], "b": [2]})
    with pytest.raises(ConfigError, match="would add a second column `b`"):
        ["a", "b"] >> ops.JoinExternal(table, on="a")


def test_an_operator_that_is_not_registered_is_refused() -> None:
    class Unknown(ColumnOp):
        def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
            return x

    with pytest.raises(ConfigError, match=r"decorate its class with @OPS.register\(\)"):
        fl.Workflow(["a"] >> Unknown())


def test_a_node_is_no_sequence() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(["a"] >> ops.AddTags("x"))  # type: ignore[call-overload]


def test_types_that_do_not_fit_are_found_before_data_is_read() -> None:
    data = fl.Dataset(pl.DataFrame({"a": ["x"]}))
    with pytest.raises(SchemaError, match="`LambdaOp` on `a`"):
        fl.Workflow(["a"] >> ops.LambdaOp(lambda col: col.dt.hour())).fit(data)


@pytest.mark.parametrize(
    ("columns", "message"), [([1], "a column name is a string, not 1"), ([[]], "a group of no columns")], ids=str
)
def test_a_column_is_named_by_a_string(columns: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        columns >> ops.Categorify()


def test_a_filter_s_columns_stand_in_brackets() -> None:
    with pytest.raises(ConfigError, match=r'(?s)asks for `.age`.*a column is `row\["age"\]`'):
        ["age"] >> ops.Filter(lambda row: row.age > 3)


@pytest.mark.parametrize(
    "longer",
    [lambda node, i: node >> ops.Clip(min_value=i), lambda node, i: node + (node["a"] >> ops.Rename(postfix=f"_{i}"))],
    ids=["one after another", "side by side"],
)
def test_a_long_graph_asks_each_operator_once(longer: Callable[[Node, int], Node]) -> None:
    asked = Counter[str]()

    @dataclass(frozen=True, kw_only=True)
    class Counted(ops.AddTags):
        def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
            asked.update(columns)
            return super().sources(columns)

    node = ["a"] >> Counted(tags="x")
    for i in range(40):
        node = longer(node, i)
    compile_graph(node, RAW)
    assert asked["a"] < 20


def test_what_a_step_costs_does_not_grow_with_the_columns_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = pl.LazyFrame.collect_schema

    def counted(frame: pl.LazyFrame, **settings: object) -> pl.Schema:
        found = ask(frame, **settings)
        asked.append(len(found))
        return found

    frame = pl.DataFrame({f"c{i}": [1.0, None] for i in range(30)})
    nodes = [[name] >> ops.FillMissing() >> ops.LogOp() >> ops.Normalize() for name in frame.columns]
    fitted = fl.Workflow(nodes).fit(fl.Dataset(frame))
    monkeypatch.setattr(pl.LazyFrame, "collect_schema", counted)
    fitted.transform(frame)
    assert len([columns for columns in asked if columns >= 30]) < 20


def test_categories_that_appear_inside_a_graph_are_strings() -> None:
    table = pl.DataFrame({"kind": pl.Series(["a", "b"], dtype=pl.Categorical), "size": [[1], [2]]})
    table = table.with_columns(colour=pl.Series(["x", "y"], dtype=pl.Enum(["x", "y"])))
    frame = pl.DataFrame({"kind": pl.Series(["b", "c"], dtype=pl.Categorical), "n": [1, 9]})
    joined = ["kind"] >> ops.JoinExternal(table, on="kind")
    binned = ["n"] >> ops.LambdaOp(
        lambda col: pl.when(col > 5).then(pl.lit("high")).otherwise(pl.lit("low")).cast(pl.Enum(["low", "high"]))
    )
    got = fl.Workflow([joined, binned]).fit(fl.Dataset(frame)).transform(frame)
    assert got.to_dicts() == [
        {"kind": "b", "size": [2], "colour": "y", "n": "low"},
        {"kind": "c", "size": None, "colour": None, "n": "high"},
    ]
    assert set(got.dtypes) == {pl.String, pl.List(pl.Int64)}
    coded = fl.Workflow(binned >> ops.Categorify()).fit(fl.Dataset(frame))
    assert coded.transform(frame)["n"].to_list() == [4, 3]
