"""The stable hash as a Polars expression, for columns of integers."""

from __future__ import annotations

import polars as pl

from falconet.hashing import MASK, MIX_1, MIX_2, P, splitmix64


def hash_expr(expr: pl.Expr, seed: int = 0) -> pl.Expr:
    """UInt64: `stable_hash(value, seed)` of an integer column of any width; null stays null.

    >>> from falconet.hashing import stable_hash
    >>> pl.select(hash_expr(pl.lit(-7), seed=1)).item() == stable_hash(-7, seed=1)
    True
    """
    x = expr.cast(pl.UInt64, wrap_numerical=True) ^ _uint64(splitmix64(seed & MASK))
    x = x + _uint64(P)
    x = (x ^ (x // 2**30)) * _uint64(MIX_1)
    x = (x ^ (x // 2**27)) * _uint64(MIX_2)
    return x ^ (x // 2**31)


def _uint64(value: int) -> pl.Expr:
    return pl.lit(value, dtype=pl.UInt64)
