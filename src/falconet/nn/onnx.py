"""Programs of torch.export as ONNX, and how ONNX Runtime runs them.

The only file that imports onnxscript, onnx and onnxruntime: `pip install "falconet[onnx]"`.
Shapes: V values of all lists, R rows, D width of a vector.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as tracing

from falconet.errors import ArtifactError, ConfigError

OPSET = 18  # the first in which scattered values may be added up
OUTPUT = "output"
_HINT = 'pip install "falconet[onnx]"'
_NOISY = ("torch.onnx", "onnxscript", "onnx_ir")  # they tell of what they leave as it is


def needs_onnx() -> None:
    """Raise ConfigError where a package is missing that writes or runs ONNX models."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(f"ONNX models need {name}, which is not installed", hint=_HINT) from error


def to_onnx(program: torch.export.ExportedProgram, names: tuple[str, ...]) -> bytes:
    """The ONNX model of a program whose inputs have these names, in their order; its result is called `output`.

    Raises ConfigError where a package is missing, or where a step of the program has no ONNX form.
    """
    needs_onnx()
    import onnx

    with _quiet(), tracing.patch({"backed_size_oblivious": True}):  # type: ignore[attr-defined]
        try:
            found = torch.onnx.export(
                program,
                input_names=names,
                output_names=(OUTPUT,),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
                custom_translation_table=_translations(),
            )
        except torch.onnx.OnnxExporterError as error:
            told = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise ConfigError(f"a step of this model has no ONNX form: {told}") from error
    assert found is not None
    model = found.model_proto
    _without_traces(model)
    onnx.checker.check_model(model)
    written: bytes = model.SerializeToString()
    return written


class OnnxProgram:
    """An ONNX model, loaded. Takes a dict of tensors on the CPU, as `nn.export.flat` gives it, and gives one tensor.

    Any number of threads may call it; each call runs in the thread that makes it. Raises ConfigError where onnxruntime
    is not installed, ArtifactError for a file that is no ONNX model.
    """

    def __init__(self, file: str | Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError("ONNX models need onnxruntime, which is not installed", hint=_HINT) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(file), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own errors share no base class
            raise ArtifactError(f"`{file}` is no ONNX model that can be run here: {error}") from error
        self.inputs = tuple(one.name for one in self._session.get_inputs())

    def __call__(self, columns: Mapping[str, Tensor]) -> Tensor:
        (found,) = self._session.run(None, {name: columns[name].numpy() for name in self.inputs})
        return torch.from_numpy(found)


def _without_traces(model: Any) -> None:
    """Leave out where in whose source each step comes from."""
    graph = model.graph
    for one in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info):
        del one.metadata_props[:]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter tells of torchvision, and of constants that it does not fold."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Steps of lists, for which torch would write a loop over the rows, or nothing."""
    aten = torch.ops.aten
    return {
        aten.embedding_bag.padding_idx: _bag,
        aten._embedding_bag.default: _bag,
        aten._embedding_bag_forward_only.default: _bag,
        aten.repeat_interleave.Tensor: _repeat,
        aten.repeat_interleave.self_Tensor: _repeat_values,
    }


def _ops() -> Any:
    """The operators, which check their arguments when the model is written."""
    from onnxscript import opset18

    return opset18


def _row_of_value(op: Any, ends: Any, values: Any) -> Any:
    """The row of each of so many values, from where the rows end: int64 of [V]."""
    one = op.Constant(value_ints=[1])
    zeros = op.Expand(op.Constant(value_ints=[0]), op.Add(values, one))
    begun = op.ScatterElements(zeros, ends, op.Expand(one, op.Shape(ends)), axis=0, reduction="add")
    return op.Slice(op.CumSum(begun, op.Constant(value_int=0)), op.Constant(value_ints=[0]), values)


def _repeat(lengths: Any, output_size: Any = None) -> Any:
    """aten::repeat_interleave.Tensor: number i as often as the length i says."""
    op = _ops()
    ends = op.CumSum(lengths, op.Constant(value_int=0))
    total = op.ReduceSum(lengths, op.Constant(value_ints=[0]), keepdims=1)
    return _row_of_value(op, ends, total)


def _repeat_values(self: Any, repeats: Any, dim: Any = None, output_size: Any = None) -> Any:
    """aten::repeat_interleave.self_Tensor along the first dimension."""
    op = _ops()
    return op.Gather(self, _repeat(repeats), axis=0)


def _bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, Any, Any, Any]:
    """aten::embedding_bag, sums and means of lists that `offsets` with their last one delimit."""
    op = _ops()
    assert include_last_offset and mode in (0, 1)
    zero, one, none = op.Constant(value_ints=[0]), op.Constant(value_ints=[1]), op.Constant(value_float=0.0)
    last = op.Constant(value_ints=[2**62])
    ends = op.Slice(offsets, one, last)
    row_V = _row_of_value(op, ends, op.Shape(indices))
    vectors_VD = op.Gather(weight, indices, axis=0)
    counts_V = op.Expand(op.Constant(value_floats=[1.0]), op.Shape(indices)) if per_sample_weights is None else None
    if counts_V is None:
        counts_V = per_sample_weights
    if padding_idx is not None and padding_idx >= 0:
        padding = op.Equal(indices, op.Constant(value_int=padding_idx))
        counts_V = op.Where(padding, none, counts_V)
    weighed_VD = op.Mul(vectors_VD, op.Unsqueeze(counts_V, one))
    rows = op.Shape(ends)
    width = op.Slice(op.Shape(weight), one, last)
    zeros_RD = op.Expand(none, op.Concat(rows, width, axis=0))
    index_VD = op.Expand(op.Unsqueeze(row_V, one), op.Shape(weighed_VD))
    total_RD = op.ScatterElements(zeros_RD, index_VD, weighed_VD, axis=0, reduction="add")
    if mode == 1:
        zeros_R = op.Expand(none, rows)
        counts_R = op.ScatterElements(zeros_R, row_V, counts_V, axis=0, reduction="add")
        total_RD = op.Div(total_RD, op.Unsqueeze(op.Max(counts_R, op.Constant(value_float=1.0)), one))
    return total_RD, zero, zero, zero
