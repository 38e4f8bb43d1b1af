"""The operators of an ETL workflow: `from falconet import ops`, then `["userId"] >> ops.Categorify()`."""

from falconet.etl.categories import Categories
from falconet.etl.op import OPS, ColumnOp, FrameOp, KeyedOp, Op, StatOp
from falconet.etl.ops.bucketize import Bucketize
from falconet.etl.ops.cardinality import DropLowCardinality
from falconet.etl.ops.categorify import Categorify
from falconet.etl.ops.columns import LambdaOp
from falconet.etl.ops.data_stats import DataStats
from falconet.etl.ops.fill import FillMedian, FillMissing
from falconet.etl.ops.groupby import Groupby
from falconet.etl.ops.hashing import HashBucket, HashedCross
from falconet.etl.ops.history import History
from falconet.etl.ops.join import JoinExternal
from falconet.etl.ops.join_groupby import JoinGroupby
from falconet.etl.ops.lists import ListSlice, ValueCount
from falconet.etl.ops.metadata import (
    AddMetadata,
    AddProperties,
    AddTags,
    TagAsItemFeatures,
    TagAsItemID,
    TagAsUserFeatures,
    TagAsUserID,
)
from falconet.etl.ops.negatives import NegativeSamples
from falconet.etl.ops.normalize import Normalize, NormalizeMinMax
from falconet.etl.ops.numbers import Clip, LogOp, ReduceDtypeSize
from falconet.etl.ops.rename import Rename
from falconet.etl.ops.rows import Dropna, Filter
from falconet.etl.ops.sequence import DifferenceLag, Position, Session, TimeSince
from falconet.etl.ops.similarity import ColumnSimilarity
from falconet.etl.ops.split import Split
from falconet.etl.ops.target_encoding import TargetEncoding
from falconet.etl.ops.time import Age, CyclicTime, TimeParts

__all__ = [
    "OPS",
    "AddMetadata",
    "AddProperties",
    "AddTags",
    "Age",
    "Bucketize",
    "Categories",
    "Categorify",
    "Clip",
    "ColumnOp",
    "ColumnSimilarity",
    "CyclicTime",
    "DataStats",
    "DifferenceLag",
    "DropLowCardinality",
    "Dropna",
    "FillMedian",
    "FillMissing",
    "Filter",
    "FrameOp",
    "Groupby",
    "HashBucket",
    "HashedCross",
    "History",
    "JoinExternal",
    "JoinGroupby",
    "KeyedOp",
    "LambdaOp",
    "ListSlice",
    "LogOp",
    "NegativeSamples",
    "Normalize",
    "NormalizeMinMax",
    "Op",
    "Position",
    "ReduceDtypeSize",
    "Rename",
    "Session",
    "Split",
    "StatOp",
    "TagAsItemFeatures",
    "TagAsItemID",
    "TagAsUserFeatures",
    "TagAsUserID",
    "TargetEncoding",
    "TimeParts",
    "TimeSince",
    "ValueCount",
]
