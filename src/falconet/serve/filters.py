"""Which items may be recommended, said in an expression over the columns of the catalogue.

    year >= 1990 and 'Comedy' in genres
    genres in $wanted and not (year < $from or title == "Alien")
    language is null

    expression   or, and, not, brackets; `and` binds closer than `or`
    comparison   == != < <= > >= between columns, values and $parameters
    in, not in   a value or a column in a list, a list $parameter or a list column; two lists: do they share a value
    is null      or `is not null`
    value        a number, a text in single or double quotes (the quote itself doubled), true, false; lists: [1, 2]

Any comparison with a null is false, `not in` too. Columns are `title`, `item_id` and the attributes of the items; a
name that is no plain word stands in `backquotes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from falconet.errors import DataError, suggest

Mask = npt.NDArray[np.bool_]
Parameter = int | float | str | bool | Sequence[int | float | str | bool]

LONGEST = 2000  # characters of an expression
_DEEPEST = 40  # brackets within brackets
_KEPT = 64  # expressions whose answers are remembered

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w)) |
    (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*") |
    (?P<parameter>\$\w+) |
    (?P<name>[^\W\d]\w*|`[^`]+`) |
    (?P<sign>==|!=|<=|>=|[<>()\[\],])
    )""",
    re.VERBOSE,
)
_WORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
_COMPARE = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_UNFIT = (  # what Arrow says of values that a column cannot have: of other types, beyond 64 bits, halves of characters
    pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError,
)  # fmt: skip


class Token(NamedTuple):
    kind: str  # number, text, parameter, name, sign, word or end
    text: str
    place: int  # where it stands, from 1


@dataclass(frozen=True)
class Operand:
    """One side of a comparison: a column's values, or one value or list. `said`: as it was written."""

    value: Any  # pa.Array, or a plain value
    said: str
    place: int

    @property
    def is_column(self) -> bool:
        return isinstance(self.value, pa.Array)

    @property
    def is_list(self) -> bool:
        if isinstance(self.value, pa.Array):
            return bool(pa.types.is_list(self.value.type) or pa.types.is_large_list(self.value.type))
        return isinstance(self.value, list)


class Filters:
    """Expressions over the columns of one catalogue."""

    def __init__(self, columns: Mapping[str, pa.ChunkedArray | pa.Array]) -> None:
        self._columns = {
            name: column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            for name, column in columns.items()
        }
        self.rows = len(next(iter(self._columns.values()))) if self._columns else 0
        self._known: dict[str, Mask] = {}

    @property
    def columns(self) -> dict[str, str]:
        """What expressions may name, and of which type it is."""
        return {name: str(column.type) for name, column in self._columns.items()}

    def mask(self, expression: str, parameters: Mapping[str, Parameter] | None = None) -> Mask:
        """Which rows the expression holds for: [rows]. Parameters that it does not name are left alone.

        Raises DataError, saying where the expression is wrong.
        """
        if len(expression) > LONGEST:
            raise DataError(f"the filter has {len(expression):,} characters, at most {LONGEST:,} are read")
        names = parameters_of(expression)
        values = {name: value for name, value in (parameters or {}).items() if name in names}
        key = f"{expression}\0{sorted(values.items())!r}"
        if (known := self._known.get(key)) is not None:
            return known
        found = _Parser(expression, self._columns, values, self.rows).mask()
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)), None)  # the oldest; another thread may have been faster
        self._known[key] = found
        return found


def parameters_of(expression: str) -> set[str]:
    """The names of the $parameters in an expression."""
    return {token.text[1:] for token in _tokens(expression) if token.kind == "parameter"}


class _Parser:
    """Reads an expression from left to right and answers it at once."""

    def __init__(
        self, expression: str, columns: Mapping[str, pa.Array], parameters: Mapping[str, Parameter], rows: int
    ) -> None:
        self._expression, self._columns, self._parameters, self._rows = expression, columns, parameters, rows
        self._tokens = _tokens(expression)
        self._next = 0
        self._depth = 0

    def mask(self) -> Mask:
        found = self._or()
        if self._token.kind != "end":
            raise self._wrong(f"`{self._token.text}` is not expected here")
        return found

    def _or(self) -> Mask:
        found = self._and()
        while self._take("or"):
            found = found | self._and()
        return found

    def _and(self) -> Mask:
        found = self._not()
        while self._take("and"):
            found = found & self._not()
        return found

    def _not(self) -> Mask:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("too many brackets or `not` within each other")
        try:
            if self._take("not"):
                return ~self._not()
            if self._take("("):
                found = self._or()
                self._expect(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Mask:
        left = self._operand()
        token = self._token
        if self._take("is"):
            no = self._take("not")
            self._expect("null")
            null = self._of(left.value.is_null() if left.is_column else pa.array([left.value is None]))
            return ~null if no else null
        if self._take("in"):
            return self._inside(left, self._operand())[0]
        if self._take("not"):
            self._expect("in")
            inside, known = self._inside(left, self._operand())
            return known & ~inside
        if token.text in _COMPARE and token.kind == "sign":
            self._next += 1
            return self._compare(token, left, self._operand())
        if left.is_column and pa.types.is_boolean(left.value.type):
            return self._of(left.value)
        raise self._wrong("a comparison is expected: == != < <= > >=, `in`, `not in`, `is null`")

    def _compare(self, sign: Token, left: Operand, right: Operand) -> Mask:
        for side in (left, right):
            if side.is_list:
                raise self._wrong(
                    f"`{side.said}` is a list, which `{sign.text}` does not compare; `in` does", side.place
                )
        try:
            return self._of(_COMPARE[sign.text](_plain(left.value), _plain(right.value)))
        except _UNFIT as error:
            raise self._wrong(f"`{left.said}` and `{right.said}` cannot be compared", sign.place) from error

    def _inside(self, left: Operand, right: Operand) -> tuple[Mask, Mask]:
        """Where `left` is in `right`, and where neither is null."""
        if not right.is_list:
            raise self._wrong(f"`{right.said}` is no list; `==` compares values", right.place)
        if right.is_column and left.is_column:
            raise self._wrong("one side of `in` must be values, not a column", left.place)
        try:
            if right.is_column:  # values in a list column
                values = left.value if left.is_list else [left.value]
                return self._shares(right.value, values), ~self._of(right.value.is_null())
            if left.is_list and left.is_column:
                return self._shares(left.value, right.value), ~self._of(left.value.is_null())
            if left.is_column:
                wanted = pa.array(right.value, from_pandas=True).cast(left.value.type)
                return self._of(pc.is_in(left.value, wanted)) & self._of(left.value.is_valid()), self._of(
                    left.value.is_valid()
                )
            both = set(left.value if left.is_list else [left.value]) & set(right.value)
            return self._of(pa.array([bool(both)])), self._of(pa.array([True]))
        except _UNFIT as error:
            raise self._wrong(f"`{left.said}` and `{right.said}` cannot be compared", left.place) from error

    def _shares(self, lists: pa.Array, values: Sequence[Any]) -> Mask:
        """Which lists hold one of the values."""
        inner = pc.list_flatten(lists)
        held = pc.is_in(inner, pa.array(list(values), from_pandas=True).cast(inner.type))
        rows = pc.list_parent_indices(lists).filter(held)
        found = np.zeros(self._rows, np.bool_)
        found[rows.to_numpy()] = True
        return found

    def _operand(self) -> Operand:
        token = self._token
        self._next += 1
        match token.kind:
            case "number":
                text = token.text
                whole = re.fullmatch(r"-?\d+", text) is not None
                if whole and not -(2**63) <= int(text) < 2**63:
                    raise self._wrong(f"`{text}` does not fit in 64 bits", token.place)
                return Operand(int(text) if whole else float(text), text, token.place)
            case "text":
                quote = token.text[0]
                return Operand(token.text[1:-1].replace(quote * 2, quote), token.text, token.place)
            case "word" if token.text in ("true", "false"):
                return Operand(token.text == "true", token.text, token.place)
            case "parameter":
                return Operand(self._parameter(token), token.text, token.place)
            case "name":
                return Operand(self._column(token), token.text, token.place)
            case "sign" if token.text == "[":
                return self._list(token)
        self._next -= 1
        raise self._wrong("a column, a value or a $parameter is expected")

    def _list(self, start: Token) -> Operand:
        values: list[Any] = []
        while not self._take("]"):
            if values:
                self._expect(",")
            item = self._operand()
            if item.is_column or item.is_list:
                raise self._wrong(f"`{item.said}` cannot stand in a list, values can", item.place)
            values.append(item.value)
        return Operand(values, "[...]", start.place)

    def _parameter(self, token: Token) -> Any:
        name = token.text[1:]
        if name not in self._parameters:
            raise self._wrong(f"no value is given for `{token.text}`", token.place)
        value = self._parameters[name]
        return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value

    def _column(self, token: Token) -> pa.Array:
        name = token.text.strip("`")
        if name not in self._columns:
            raise self._wrong(f"items have no column `{name}`", token.place, hint=suggest(name, self._columns))
        return self._columns[name]

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self, text: str) -> bool:
        token = self._token
        if token.text == text and token.kind in ("sign", "word"):
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(f"`{text}` is expected")

    def _of(self, answer: Any) -> Mask:
        """An answer of Arrow as a mask of all rows; null is false."""
        if isinstance(answer, pa.Scalar):
            return np.full(self._rows, bool(answer.as_py()))
        found: Mask = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
        return np.full(self._rows, found[0]) if len(found) == 1 != self._rows else found

    def _wrong(self, what: str, place: int | None = None, hint: str | None = None) -> DataError:
        place = self._token.place if place is None else place
        return DataError(f"filter, character {place}: {what}", hint=hint or self._expression)


def _plain(value: Any) -> Any:
    return value if isinstance(value, pa.Array) else pa.scalar(value)


def _tokens(expression: str) -> list[Token]:
    found, start = [], 0
    end = len(expression.rstrip())
    while start < end:
        match = _TOKEN.match(expression, start)
        if match is None:
            place = len(expression) - len(expression[start:].lstrip()) + 1
            raise DataError(f"filter, character {place}: this is not understood", hint=expression)
        kind = match.lastgroup or ""
        text = match[kind]
        word = kind == "name" and text in _WORDS
        found.append(Token("word" if word else kind, text, match.start(kind) + 1))
        start = match.end()
    return [*found, Token("end", "", len(expression) + 1)]
