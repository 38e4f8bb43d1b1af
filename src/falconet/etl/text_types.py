"""Texts as values: of which type a column of texts is, and what each of them then stands for."""

from __future__ import annotations

import polars as pl

_SPACES = " \t"
_LONG = 10**18  # whole numbers from here on are not taken for floats, which would lose digits
_LONG_NUMBER = r"^[+-]?0*[1-9][0-9]{18,}$"


def parse(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Text as values of a type, null where it is none. Dates and times as ISO 8601 writes them."""
    if dtype == pl.String:
        return x
    if isinstance(dtype, (pl.Categorical, pl.Enum, pl.Binary)):
        return x.cast(dtype, strict=False)
    x = x.str.strip_chars(_SPACES)
    if isinstance(dtype, pl.Boolean):
        word = x.str.to_lowercase()
        return pl.when(word.is_in(["true", "1"])).then(True).when(word.is_in(["false", "0"])).then(False)
    if isinstance(dtype, pl.Date):
        return x.str.to_date("%Y-%m-%d", strict=False)
    if isinstance(dtype, pl.Time):
        return pl.coalesce(x.str.to_time(f"%H:%M{seconds}", strict=False) for seconds in (":%S%.f", ""))
    if isinstance(dtype, pl.Datetime):
        zone = "" if dtype.time_zone is None else "%#z"
        x = x.str.replace(" ", "T", literal=True).str.replace(r"Z$", "+00:00")
        times = [
            x.str.to_datetime(f"%Y-%m-%dT%H:%M{seconds}{zone}", time_unit=dtype.time_unit, strict=False)
            for seconds in (":%S%.f", "")
        ]
        if zone:
            return pl.coalesce(times).dt.convert_time_zone(str(dtype.time_zone))
        return pl.coalesce(*times, x.str.to_datetime("%Y-%m-%d", time_unit=dtype.time_unit, strict=False))
    return x.cast(dtype, strict=False)


class Guess:
    """What a column may be, after the lines seen."""

    def __init__(self) -> None:
        self.may: list[pl.DataType] = [pl.Int64(), pl.UInt64(), pl.Float64(), pl.Boolean()]
        self.empty = True

    @property
    def dtype(self) -> pl.DataType:
        return pl.Null() if self.empty else next(iter(self.may), pl.String())

    def see(self, values: pl.Series) -> None:
        if values.null_count() == len(values):
            return
        self.empty = False
        words = values.str.strip_chars(_SPACES)
        if pl.Int64() in self.may:
            whole = words.cast(pl.Int64, strict=False)
            if whole.null_count() == values.null_count():
                fits: dict[pl.DataType, bool] = {
                    pl.Int64(): True,
                    pl.UInt64(): bool((whole >= 0).all()),
                    pl.Float64(): bool(whole.is_between(-_LONG, _LONG, closed="none").all()),
                }
                self.may = [dtype for dtype in self.may if fits.get(dtype)]
                return
        self.may = [dtype for dtype in self.may if _fits(words, dtype)]


def guess(values: pl.Series) -> pl.DataType:
    """The type that all these texts agree with; Null where all are null."""
    found = Guess()
    found.see(values)
    return found.dtype


def _fits(words: pl.Series, dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Boolean):
        return bool(words.str.to_lowercase().is_in(["true", "false"]).all())
    if words.cast(dtype, strict=False).null_count() > words.null_count():
        return False
    return not (isinstance(dtype, pl.Float64) and words.str.contains(_LONG_NUMBER).any())
