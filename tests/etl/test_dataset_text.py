"""CSV and JSON lines, as people really write them: encodings, separators, packing, and the line of what is wrong."""

from __future__ import annotations

import bz2
import gzip
import subprocess
import sys
from datetime import date, datetime, time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import falconet.etl.json_lines
import falconet.etl.sources
import falconet.etl.text_files
from falconet.errors import ConfigError, DataError, SchemaError
from falconet.etl.dataset import Dataset

WORDS = pl.DataFrame({"id": [1, 2, 3], "name": ["Zoë", "naïve", "日本"[:0]], "x": [0.5, None, -1.0]})
TEXT = 'id,name,x\n1,Zoë,0.5\n2,naïve,\n3,"",-1.0\n'


def rows(path: Path | str, **options: object) -> list[tuple[object, ...]]:
    return Dataset(path, **options).scan().collect().rows()  # type: ignore[arg-type]


def csv(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("encoding", "codec"),
    [
        ("utf-8", "utf-8"),
        ("utf-8", "utf-8-sig"),
        ("utf-8-sig", "utf-8-sig"),
        ("latin-1", "latin-1"),
        ("cp1252", "cp1252"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
    ],
)
def test_a_file_is_read_in_its_encoding(tmp_path: Path, encoding: str, codec: str) -> None:
    data = Dataset(csv(tmp_path, TEXT.encode(codec)), encoding=encoding)
    assert_frame_equal(data.scan().collect(), WORDS)


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2", "lz4"])
@pytest.mark.parametrize("separator", [",", "::"])
def test_packed_files_are_unpacked_as_they_are_read(tmp_path: Path, ending: str, separator: str) -> None:
    plain = TEXT.replace('""', "-").replace(",", separator).encode("latin-1")
    if ending in ("zst", "lz4"):
        with pa.CompressedOutputStream(str(tmp_path / f"a.csv.{ending}"), "zstd" if ending == "zst" else ending) as out:
            out.write(plain)
    else:
        csv(tmp_path, {"gz": gzip.compress, "bz2": bz2.compress}[ending](plain), f"a.csv.{ending}")
    data = Dataset(tmp_path / f"a.csv.{ending}", encoding="latin-1", separator=separator)
    assert data.scan().collect().rows() == [(1, "Zoë", 0.5), (2, "naïve", None), (3, "-", -1.0)]


def test_a_packed_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(("a,b\n" + "".join(f"{i},{i * 7919 % 1000}\n" for i in range(5000))).encode())
    path = csv(tmp_path, whole[: len(whole) // 2], "a.csv.gz")
    with pytest.raises(DataError, match=r"a.csv.gz` cannot be read to its end[\s\S]*cut short"):
        Dataset(path)
    lines = csv(tmp_path, gzip.compress(b'{"a": 1}\n' * 5000)[:-20], "a.jsonl.gz")
    with pytest.raises(DataError, match=r"a.jsonl.gz` cannot be read to its end"):
        Dataset(lines)


def test_blank_lines_before_the_name_of_one_column_are_no_rows(tmp_path: Path) -> None:
    assert rows(csv(tmp_path, "\r\n\na\n1\n\n3\n")) == [(1,), (None,), (3,)]
    with pytest.raises(DataError, match="line 5: column `a` is `x`"):
        Dataset(csv(tmp_path, "\n\na\n1\nx\n"), dtypes={"a": "int64"})


def test_separators_of_several_characters_take_quotes_for_what_they_are(tmp_path: Path) -> None:
    path = csv(tmp_path, '1::"Great" Cats (1998)::A|B\n2::it\'s 5" long::\n\n3::x:y::C:\n', "movies.dat")
    want = [(1, '"Great" Cats (1998)', "A|B"), (2, "it's 5\" long", None), (3, "x:y", "C:")]
    assert rows(path, separator="::", has_header=False, columns=["movie", "title", "genres"]) == want


def test_a_separator_may_lie_on_the_edge_of_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = csv(tmp_path, "a::b::c\n" + "".join(f"{i}::é{i}::{i}\n" for i in range(40)))
    want = [(i, f"é{i}", i) for i in range(40)]
    for block in range(20, 60, 3):
        monkeypatch.setattr(falconet.etl.text_files, "BLOCK", block)
        assert rows(path, separator="::") == want


def test_columns_without_a_name_are_called_by_their_place(tmp_path: Path) -> None:
    data = Dataset(csv(tmp_path, ",a,\n0,x,\n1,y,\n"))
    assert data.schema == {"column_1": pl.Int64, "a": pl.String, "column_3": pl.String}
    assert data.scan().collect().rows() == [(0, "x", None), (1, "y", None)]
    with pytest.raises(SchemaError, match="has two columns `column_1`"):
        Dataset(csv(tmp_path, ",column_1\n0,x\n"))


def test_a_separator_may_be_any_character(tmp_path: Path) -> None:
    assert rows(csv(tmp_path, "a;b\n1;x,y\n"), separator=";") == [(1, "x,y")]
    assert rows(csv(tmp_path, "a§b\n1§x\n"), separator="§") == [(1, "x")]
    assert rows(csv(tmp_path, "a|b\r\n1|x\r\n"), separator="|") == [(1, "x")]
    assert rows(csv(tmp_path, "a b\n1 x\n", "a.txt"), separator=" ") == [(1, "x")]


def test_quotes_hold_separators_quotes_and_line_ends(tmp_path: Path) -> None:
    path = csv(tmp_path, 'a,b\n1,"x,y"\n2,"say ""hi"""\n3,"two\nlines"\n4,5" disk\n')
    assert rows(path) == [(1, "x,y"), (2, 'say "hi"'), (3, "two\nlines"), (4, '5" disk')]
    assert rows(csv(tmp_path, "a,b\n1,'x,y'\n"), quote="'") == [(1, "x,y")]
    assert rows(csv(tmp_path, 'a,b\n1,"x\n'), quote=None) == [(1, '"x')]


def test_nothing_is_null_quotes_around_nothing_are_an_empty_string(tmp_path: Path) -> None:
    path = csv(tmp_path, 'a,b,c\n,"",1\nNA,"NA",NA\n-,x,-\n')
    want = [(None, "", 1), (None, "NA", None), (None, "x", None)]
    assert rows(path, null_values=["NA", "-"]) == want
    assert rows(csv(tmp_path, "a\n1\n?\n"), null_values="?") == [(1,), (None,)]


def test_blank_lines_are_passed_over_but_where_a_line_is_one_value(tmp_path: Path) -> None:
    assert rows(csv(tmp_path, "\na,b\n1,2\n\n3,4\n\n")) == [(1, 2), (3, 4)]
    assert rows(csv(tmp_path, "a\n1\n\n3\n")) == [(1,), (None,), (3,)]


@pytest.mark.parametrize(
    ("values", "dtype", "want"),
    [
        (["1", " 2", "-3"], pl.Int64, [1, 2, -3]),
        (["1", "18446744073709551615"], pl.UInt64, [1, 18446744073709551615]),
        (["-1", "18446744073709551615"], pl.String, ["-1", "18446744073709551615"]),
        (["1", "36893488147419103232"], pl.String, ["1", "36893488147419103232"]),
        (["1234567890123456789", "0.5"], pl.String, ["1234567890123456789", "0.5"]),
        (["1", "2.5", "1e3", "inf"], pl.Float64, [1.0, 2.5, 1000.0, float("inf")]),
        (["true", "False", "TRUE"], pl.Boolean, [True, False, True]),
        (["true", "1"], pl.String, ["true", "1"]),
        (["1", "x"], pl.String, ["1", "x"]),
        (["2020-01-31"], pl.String, ["2020-01-31"]),
        (["", ""], pl.String, [None, None]),
    ],
    ids=lambda x: str(x)[:40],
)
@pytest.mark.parametrize("block", [16, 1 << 20])
def test_types_are_what_all_lines_agree_with_however_they_are_cut(
    tmp_path: Path,
    values: list[str],
    dtype: type[pl.DataType],
    want: list[object],
    block: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(falconet.etl.text_files, "BLOCK", block + max(map(len, values)))
    data = Dataset(csv(tmp_path, "a,b\n" + "".join(f"{value},\n" for value in values)))
    assert data.schema == {"a": dtype, "b": pl.String}
    assert data.scan().collect()["a"].to_list() == want


def test_types_are_those_of_all_files(tmp_path: Path) -> None:
    csv(tmp_path, "a,b\n1,\n", "a.csv")
    csv(tmp_path, "b,a\n7,2.5\n", "b.csv")
    csv(tmp_path, "a,b\n", "c.csv")
    data = Dataset(tmp_path)
    assert data.schema == {"a": pl.Float64, "b": pl.Int64}
    assert data.scan().collect().rows() == [(1.0, None), (2.5, 7)]


def test_columns_that_only_some_files_have_may_be_left_out(tmp_path: Path) -> None:
    csv(tmp_path, "a,b\n1,2\n", "a.csv")
    csv(tmp_path, "a\n3\n", "b.csv")
    with pytest.raises(SchemaError, match=r"b.csv` has no column `b`"):
        Dataset(tmp_path)
    assert rows(tmp_path, columns=["a"]) == [(1,), (3,)]


def test_given_types_are_read_as_iso_writes_them(tmp_path: Path) -> None:
    content = "day,at,utc,clock,yes,price,kind,n\n2020-01-31,2020-01-31 10:20:30.5,2020-01-31T10:20Z,10:20,1,1.25,x,7\n"
    dtypes = {
        "day": pl.Date,
        "at": pl.Datetime("ms"),
        "utc": pl.Datetime("us", "UTC"),
        "clock": pl.Time(),
        "yes": "bool",
        "price": pl.Decimal(10, 2),
        "kind": pl.Categorical,
        "n": "int8",
    }
    data = Dataset(csv(tmp_path, content), dtypes=dtypes)
    frame = data.scan().collect()
    assert frame.drop("utc", "price").rows() == [
        (date(2020, 1, 31), datetime(2020, 1, 31, 10, 20, 30, 500_000), time(10, 20), True, "x", 7)
    ]
    assert frame["utc"].cast(pl.Int64).to_list() == [1580466000000000]
    assert frame["price"].cast(pl.Float64).to_list() == [1.25]
    assert data.schema["n"] == pl.Int8
    assert data.schema["yes"] == pl.Boolean


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ('a,b\n1,"x\ny"\n\n2\n', {}, r"a.csv`, line 5: 1 values where 2 are expected[\s\S]*the line is `2`"),
        ("a,b\n1,2\n3,4,5\n", {}, r"line 3: 3 values where 2 are expected[\s\S]*`3,4,5`"),
        ("a::b\n1::2\n3::4::5\n", {"separator": "::"}, r"line 3: 3 values where 2[\s\S]*`3::4::5`"),
        ('a,b\n1,"x\ny\n', {}, r"after line 1: unexpected end of data[\s\S]*quotes closed"),
        ('a,b\n1,"x\n2,3\n' + "4,5\n" * 10, {}, r"after line 1: unexpected end of data"),
        (
            'a,b\n1,"x\n\ny"\n,z\nq,5\n',
            {"dtypes": {"a": pl.Int64}},
            r"a.csv`, line 6: column `a` is `q`, which is no Int64[\s\S]*null_values=\[\"q\"\][\s\S]*dtypes=",
        ),
        ("a\n1\n300\n", {"dtypes": {"a": "int8"}}, r"line 3: column `a` is `300`, which is no Int8"),
        ("a\n2020-13-01\n", {"dtypes": {"a": pl.Date}}, r"line 2: column `a` is `2020-13-01`, which is no Date"),
        (b"a,b\n1,x\n2,\xff\n", {}, r"line 3: byte 0xff is not UTF-8[\s\S]*latin-1"),
        (b"a,\xe9\n1,x\n", {}, r"line 1: byte 0xe9 is not UTF-8"),
        (b"a,b\n1,x\n2,\x81\n", {"encoding": "cp1252"}, r"line 3: byte 0x81 is not CP1252"),
        (b"\xff\xfea\x00b", {"encoding": "utf-16"}, r"after line 0: 'utf-16-le' codec[\s\S]*encoding="),
        ("a::b\n1::é\n".encode("utf-16")[:-1], {"encoding": "utf-16", "separator": "::"}, "after line 1: 'utf-16-le'"),
        ("a,a\n1,2\n", {}, r"a.csv` has two columns `a`[\s\S]*has_header=False"),
        ("", {}, r"a.csv` is empty[\s\S]*line of column names"),
        ("a\0,b\n1,2\n", {}, r"a.csv` has the name 'a\\x00', and no name may have a null byte"),
        ("\n\n", {}, r"a.csv` is empty"),
        ("a::b\x1f\n1::2\n", {"separator": "::"}, r"U\+001F"),
        ('a,b\n"x"y,1\nz,q\n', {"dtypes": {"b": "int64"}}, r"line 3: column `b` is `q`, which is no Int64"),
        (f"a,b\n{'x' * 200_000},1\nz,q\n", {"dtypes": {"b": "int64"}}, "line 3: column `b` is `q`, which is no Int64"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    tmp_path: Path, content: str | bytes, options: dict[str, object], message: str
) -> None:
    path = csv(tmp_path, content)
    with pytest.raises(DataError, match=message):
        Dataset(path, **options)  # type: ignore[arg-type]


def test_a_header_alone_has_no_rows_and_no_header_has_names(tmp_path: Path) -> None:
    data = Dataset(csv(tmp_path, "a,b\n"))
    assert (data.rows, data.schema) == (0, {"a": pl.String, "b": pl.String})
    path = csv(tmp_path, "1,x\n2,y\n", "b.csv")
    assert rows(path, has_header=False, columns=["n", "s"]) == [(1, "x"), (2, "y")]
    with pytest.raises(DataError, match=r"b.csv`, line 1: 2 values where 1 are expected"):
        Dataset(path, has_header=False, columns=["n"])
    assert Dataset(csv(tmp_path, "", "c.csv"), has_header=False, columns=["n"]).rows == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "utf-9"}, r"encoding='utf-9' is not known[\s\S]*latin-1"),
        ({"separator": ""}, "separator=''"),
        ({"separator": "\n"}, "separator="),
        ({"quote": "''"}, "quote="),
        ({"has_header": False}, r"has_header=False and no names[\s\S]*columns="),
        ({"has_header": False, "columns": ["a", "a"]}, "`a` is in `columns` twice"),
        ({"dtypes": {"a": "int7"}}, "column `a` has the type int7"),
        ({"storage_options": {"region": "x"}}, "storage_options are for object stores"),
    ],
)
def test_settings_of_text_are_checked(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=message):
        Dataset(csv(tmp_path, "a,b\n1,2\n"), **options)  # type: ignore[arg-type]


def test_settings_of_text_are_refused_for_what_is_no_csv(tmp_path: Path) -> None:
    path = csv(tmp_path, '{"a": 1}\n', "a.jsonl")
    with pytest.raises(ConfigError, match=r"a.jsonl` is no CSV file"):
        Dataset(path, has_header=False, columns=["a"])
    WORDS.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a.parquet` is no CSV file[\s\S]*separator"):
        Dataset(tmp_path / "a.parquet", separator=";")
    with pytest.raises(ConfigError, match="the data is a table in memory, no CSV file"):
        Dataset(WORDS, encoding="latin-1")


LINES = """{"user": 1, "tags": ["x"], "at": {"page": 1}}

{"user": 2.5, "name": "Zoë", "tags": []}
{"user": null, "tags": null, "at": {"place": "top"}, "gone": null}
"""


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.ndjson.zst"])
def test_json_lines_have_the_keys_of_all_lines(tmp_path: Path, name: str) -> None:
    with pa.output_stream(str(tmp_path / name), compression="detect") as out:
        out.write(b"\xef\xbb\xbf" + LINES.encode())
    frame = Dataset(tmp_path).scan().collect()
    assert frame.schema == {
        "user": pl.Float64,
        "tags": pl.List(pl.String),
        "at": pl.Struct({"page": pl.Int64, "place": pl.String}),
        "name": pl.String,
        "gone": pl.String,
    }
    assert frame.rows() == [
        (1.0, ["x"], {"page": 1, "place": None}, None, None),
        (2.5, [], None, "Zoë", None),
        (None, None, {"page": None, "place": "top"}, None, None),
    ]


def test_json_lines_have_the_keys_and_types_of_all_blocks_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(falconet.etl.json_lines, "BLOCK", 16)
    csv(tmp_path, '{"a": 1}\n{"a": 9007199254740993}\n{"b": "x"}', "a.jsonl")
    csv(tmp_path, '{"c": [1]}\n{"c": [0.5], "b": null}\n', "b.jsonl")
    csv(tmp_path, "", "c.jsonl")
    frame = Dataset(tmp_path).scan().collect()
    assert frame.schema == {"a": pl.Int64, "b": pl.String, "c": pl.List(pl.Float64)}
    assert frame.rows() == [
        (1, None, None),
        (9007199254740993, None, None),
        (None, "x", None),
        (None, None, [1.0]),
        (None, None, [0.5]),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n\n{"a": 2\n{"a": 3}\n', r"a.jsonl`, line 3: no JSON: [\s\S]*the line is `\{\"a\": 2`"),
        ('{"a": 1}\n{"a": "1"}\n', r"line 2: `a` is text, and a number in the lines before"),
        ('{"a": 1}\n{"a": true}\n', r"line 2: `a` is true or false, and a number"),
        ('{"a": [1]}\n{"a": {"b": 1}}\n', r"line 2: `a` is an object, and a list"),
        ('{"a": 1}\n[1]\n', r"line 2: no object but a list"),
        ('{"a": 1}\nnull\n', r"line 2: no object but null"),
        ('null"b"', r"line 1: no JSON: Extra data"),
        ('{"a": [{}]}\n', r"column `a` of `.*a.jsonl` holds objects without any key"),
        ('{"a": 1}null\n', r"line 1: no JSON: Extra data"),
        ('{"a": NaN}\n', r"line 1: no JSON: NaN is not a number of JSON"),
        ('{"a": 1} {"a": 2}\n', r"line 1: no JSON: Extra data"),
        ('{"a": 1}\n{"a": 2, "a": 3}\n', r"line 2: no JSON: the key `a` is there twice"),
        ('{"a": 99999999999999999999}\n', r"`a` holds whole numbers beyond 64 bits with a sign"),
        ("", r"a.jsonl` is empty"),
        ('{"a": [{"b\\u0000": 1}]}\n', r"a.jsonl` has the name 'b\\x00', and no name may have a null byte"),
    ],
)
def test_a_broken_line_of_json_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset(csv(tmp_path, content, "a.jsonl"))


def test_kinds_that_change_between_blocks_of_json_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falconet.etl.json_lines, "BLOCK", 10)
    path = csv(tmp_path, '{"a": 1}\n{"a": 2}\n{"a": "x"}\n', "a.jsonl")
    with pytest.raises(SchemaError, match=r"a.jsonl`, line 3: `a` is text, and a number in the lines before"):
        Dataset(path)


MEASURE = """
import resource, sys
from falconet.etl.dataset import Dataset

for path in sys.argv[1:]:
    data = Dataset(path, separator="::", encoding="latin-1", has_header=False, columns=["a", "b", "c"])
    print(data.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falconet.etl.sources, "private_folder", lambda: tmp_path / "gone")
    with pytest.raises(DataError, match=r"00000.parquet` cannot be written: [\s\S]*is the disk full"):
        Dataset(csv(tmp_path, TEXT))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no `resource`")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    block = (("12345::" + "é" * 250 + "::0.25\n") * 20_000).encode("latin-1")
    for name, blocks in (("small.dat", 8), ("large.dat", 40)):  # 42 MB, 211 MB
        with (tmp_path / name).open("wb") as out:
            for _ in range(blocks):
                out.write(block)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "small.dat"), str(tmp_path / "large.dat")],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    small, large = ([int(word) for word in line.split()] for line in done.stdout.splitlines())
    assert (small[0], large[0]) == (160_000, 800_000)
    assert large[1] - small[1] < 200  # megabytes; the large file has 330 more, as UTF-8 in memory
