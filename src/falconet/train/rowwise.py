"""How a touched row of a table follows its gradient: the rules, their state, and rows kept in bfloat16.

Rows that a step does not touch stay as they are, state and all. What corrects a young mean (Kingma and Ba, "Adam",
2015) counts the touches of each row, not steps.

Shapes: U distinct ids, D width of a table, V rows of a table (or of this process's share of it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from falconet.hashing import stable_hash

Rule = Literal["rowwise_rmsprop", "rowwise_adagrad", "rowwise_adam", "lazy_adam", "sgd"]
RULE: Rule = "rowwise_rmsprop"  # where nothing is said

EPSILON = 1e-8
DECAY = 0.99  # of row-wise RMSprop's mean square, per touch
MOMENTUM, ADAM_DECAY = 0.9, 0.999  # Adam's, per touch

_ROW: dict[Rule, tuple[str, ...]] = {
    "rowwise_rmsprop": ("square", "touches"),
    "rowwise_adagrad": ("square",),
    "rowwise_adam": ("square", "touches"),
    "lazy_adam": ("touches",),
    "sgd": (),
}
_WIDE: dict[Rule, tuple[str, ...]] = {
    "rowwise_rmsprop": (),
    "rowwise_adagrad": (),
    "rowwise_adam": ("mean",),
    "lazy_adam": ("mean", "square"),
    "sgd": (),
}


def numbers_per_row(rule: Rule | None, width: int) -> int:
    """How many numbers (float32) a rule keeps beside each row."""
    return 0 if rule is None else len(_ROW[rule]) + width * len(_WIDE[rule])


def fresh_state(rule: Rule | None, values_VD: Tensor) -> dict[str, Tensor]:
    """The state of rows that no step has touched: zeros, [V] or [V, D]."""
    if rule is None:
        return {}
    rows = {key: torch.zeros(len(values_VD), device=values_VD.device) for key in _ROW[rule]}
    return rows | {key: torch.zeros_like(values_VD, dtype=torch.float32) for key in _WIDE[rule]}


def touch(rule: Rule, state: dict[str, Tensor], ids_U: Tensor) -> dict[str, Tensor]:
    """Count a touch of the rows `ids_U`, where the rule counts them. Gives what their young means are divided by, by
    the name of the mean: [U]."""
    if "touches" not in state:
        return {}
    touches_U = state["touches"].index_select(0, ids_U).add_(1)
    state["touches"].index_copy_(0, ids_U, touches_U)
    if rule == "rowwise_rmsprop":
        return {"square": _correction(DECAY, touches_U)}
    return {"square": _correction(ADAM_DECAY, touches_U), "mean": _correction(MOMENTUM, touches_U)}


def pace(
    rule: Rule,
    state: dict[str, Tensor],
    ids_U: Tensor,
    squares_U: Tensor,
    width: int,
    rate: float,
    young: Mapping[str, Tensor],
) -> Tensor:
    """What `follow` multiplies the gradient of each of the rows `ids_U`, or its running mean, by: [U].

    The state that is one number per row is moved on. `squares_U`: the sum of the squares of each row's gradient.
    `young`: what `touch` gave for these rows.

    rowwise_rmsprop   v <- .99 v + .01 mean(g²),   -rate g / (sqrt(v / (1 - .99^touches)) + 1e-8)
    rowwise_adagrad   v <- v + mean(g²),           -rate g / (sqrt(v) + 1e-8)
    rowwise_adam      m <- .9 m + .1 g,  v <- .999 v + .001 mean(g²),  both corrected,  -rate m / (sqrt(v) + 1e-8)
    lazy_adam         the same with g² in place of its mean over the row
    sgd               -rate g
    """
    if rule == "sgd":
        return torch.full_like(squares_U, -rate)
    if rule == "rowwise_adagrad":
        square_U = state["square"].index_select(0, ids_U).add_(squares_U, alpha=1 / width)
        state["square"].index_copy_(0, ids_U, square_U)
        return -rate / square_U.sqrt_().add_(EPSILON)
    pace_U = torch.full_like(squares_U, -rate)
    if "mean" in young:
        pace_U /= young["mean"]
    if rule != "lazy_adam":
        decay = DECAY if rule == "rowwise_rmsprop" else ADAM_DECAY
        square_U = _moved(state["square"], ids_U, squares_U / width, decay).div_(young["square"])
        pace_U /= square_U.sqrt_().add_(EPSILON)
    return pace_U


def follow(
    rule: Rule,
    state: dict[str, Tensor],
    ids_U: Tensor,
    gradient_UD: Tensor,
    pace_U: Tensor,
    young: Mapping[str, Tensor],
) -> Tensor:
    """What the rows `ids_U` move by, at the pace that `pace` gave: [U, D]. State as wide as the rows is moved on; the
    gradient is used up."""
    if "mean" not in state:  # in place: large temporaries cost more than the arithmetic
        return gradient_UD.mul_(pace_U.unsqueeze(1))
    step_UD = _moved(state["mean"], ids_U, gradient_UD, MOMENTUM).mul_(pace_U.unsqueeze(1))
    if rule == "lazy_adam":
        square_UD = _moved(state["square"], ids_U, gradient_UD.square_(), ADAM_DECAY)
        step_UD.div_(square_UD.div_(young["square"].unsqueeze(1)).sqrt_().add_(EPSILON))
    return step_UD


def _correction(decay: float, touches_U: Tensor) -> Tensor:
    """1 - decay^touches, with all its digits also where that is small."""
    return -torch.expm1(touches_U * math.log(decay))


def _moved(mean: Tensor, ids_U: Tensor, new: Tensor, decay: float) -> Tensor:
    """The running mean of some rows, moved on."""
    after = mean.index_select(0, ids_U).lerp_(new, 1 - decay)
    mean.index_copy_(0, ids_U, after)
    return after


def shrink(values_VD: Tensor, ids_U: Tensor, step_UD: Tensor, by: float) -> Tensor:
    """The step of rows that also lose a share of themselves."""
    return step_UD.add_(values_VD.index_select(0, ids_U), alpha=-by)


def move(values_VD: Tensor, ids_U: Tensor, step_UD: Tensor, keys_U: Tensor | None = None) -> None:
    """Add a step to rows. Rows in bfloat16 are rounded up or down by chance, drawn from `keys_U` (see `keys`)."""
    if keys_U is None:
        values_VD.index_add_(0, ids_U, step_UD)
        return
    rows_UD = step_UD.add_(values_VD.index_select(0, ids_U))
    values_VD.index_copy_(0, ids_U, round_by_chance(rows_UD, keys_U))


def keys(table: str, seed: int, step: int, ids_U: Tensor) -> Tensor:
    """A number for each row of a step, the same wherever the row lies: int32 [U]."""
    base = stable_hash((table, step), seed)
    assert base is not None
    return _mix(_mix(ids_U.to(torch.int32)) ^ (base & 0x7FFFFFFF))


def round_by_chance(x_UD: Tensor, keys_U: Tensor) -> Tensor:
    """float32 as bfloat16, up with the probability of the part that is cut off, so that small steps are not lost.

    Bits are drawn by MurmurHash3's finaliser (Appleby, 2011) from (key of the row, place in the row).
    """
    places_D = torch.arange(x_UD.shape[1], dtype=torch.int32, device=x_UD.device) * -1640531527  # 2^32 / golden ratio
    noise_UD = (_mix(keys_U.unsqueeze(1) + places_D) >> 16).bitwise_and_(0xFFFF)
    bits_UD = x_UD.view(torch.int32).add(noise_UD).bitwise_and_(-65536)  # the upper half is a bfloat16
    return torch.where(x_UD.isfinite(), bits_UD.view(torch.float32), x_UD).to(torch.bfloat16)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 16) & 0xFFFF)) * -2048144789  # 0x85EBCA6B
    x = (x ^ ((x >> 13) & 0x7FFFF)) * -1028477387  # 0xC2B2AE35
    return x ^ ((x >> 16) & 0xFFFF)
