"""The operators of an ETL workflow: `from falconet import ops`, then `["userId"] >> ops.Categorify()`."""

from falconet.etl.op import OPS, ColumnOp, FrameOp, KeyedOp, Op, StatOp
from falconet.etl.ops.categorify import Categories, Categorify
from falconet.etl.ops.columns import AddTags, FillMissing, LambdaOp, Rename
from falconet.etl.ops.history import History
from falconet.etl.ops.join import JoinExternal
from falconet.etl.ops.normalize import Normalize
from falconet.etl.ops.rows import Dropna, Filter
from falconet.etl.ops.split import Split

__all__ = [
    "OPS",
    "AddTags",
    "Categories",
    "Categorify",
    "ColumnOp",
    "Dropna",
    "FillMissing",
    "Filter",
    "FrameOp",
    "History",
    "JoinExternal",
    "KeyedOp",
    "LambdaOp",
    "Normalize",
    "Op",
    "Rename",
    "Split",
    "StatOp",
]
