"""Readers of MovieLens releases: every format, folder and zip, and what they say of damaged files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falconet.datasets import container, layout
from falconet.datasets.movielens import convert, open_movielens
from falconet.datasets.text import title_year
from falconet.errors import ArtifactError, ColumnNotFoundError, DataError, FalconetError, SchemaError
from tiny_movielens import CSV, FORMATS, MOVIES_DAT, U, write_folder, write_zip

RELEASES = {"csv": "ml-tiny", "1m": "ml-1m", "10m": "ml-10m", "100k": "ml-100k"}


def rows(path: Path) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for batch in open_movielens(path).ratings() for row in batch.to_pylist()]


@pytest.fixture(params=["folder", "folder around", "zip", "flat zip"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def put(tmp_path: Path, files: dict[str, bytes], place: str) -> Path:
    """The files as a folder, a folder around it, a zip with an inner folder, or one without."""
    if place == "folder":
        return write_folder(tmp_path / "ml-tiny", files)
    if place == "folder around":
        write_folder(tmp_path / "data" / ".hidden", files)
        return write_folder(tmp_path / "data" / "ml-tiny", files).parent
    return write_zip(tmp_path / "ml-tiny.zip", files, "ml-tiny/" if place == "zip" else "")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_ratings_and_films(tmp_path: Path, form: str, place: str) -> None:
    path = put(tmp_path, FORMATS[form], place)
    second = 2.0 if form in ("1m", "100k") else 2.5
    assert rows(path) == [(1, 10, 4.0, 964982703), (1, 30, second, 964982704), (2, 10, 5.0, 1445714994)]
    data = open_movielens(path)
    assert data.release == RELEASES[form]
    assert data.movies().to_pylist() == [
        {
            "movieId": 10,
            "title": "City of Lost Children, The (Cité des enfants perdus, La) (1995)",
            "genres": ["Adventure", "Sci-Fi"],
            "year": 1995,
        },
        {"movieId": 20, "title": "Babylon 5", "genres": [], "year": None},
        {"movieId": 30, "title": 'The "Burbs" (1989)', "genres": ["Comedy"], "year": 1989},
    ]


def test_columns_have_the_documented_types(tmp_path: Path) -> None:
    data = open_movielens(write_folder(tmp_path / "a", CSV))
    assert [str(t) for t in next(iter(data.ratings())).schema.types] == ["int32", "int32", "float", "int64"]
    movies = data.movies().schema
    assert movies.names == ["movieId", "title", "genres", "year"]
    assert movies.types == [pa.int32(), pa.string(), pa.list_(pa.string()), pa.int32()]


@pytest.mark.parametrize("block", [34, 50, 10_000])
@pytest.mark.parametrize("form", FORMATS)
def test_where_blocks_end_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, block: int
) -> None:
    whole = rows(write_folder(tmp_path / "a", FORMATS[form]))
    monkeypatch.setattr(container, "BLOCK_BYTES", block)
    assert rows(tmp_path / "a") == whole


def test_other_columns_orders_and_line_ends_are_read(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf"rating",movieId,extra,timestamp,userId\r\n3.5,7,x,100,1\r\n\r\n"4",8,y,101,1'
    assert rows(write_folder(tmp_path / "a", {**CSV, "ratings.csv": text})) == [(1, 7, 3.5, 100), (1, 8, 4.0, 101)]


def test_latin_1_text_is_not_split_at_odd_characters(tmp_path: Path) -> None:
    movies = "10::A\x85B (1990)::Drama\n".encode("latin-1")
    data = open_movielens(write_folder(tmp_path / "a", {**FORMATS["1m"], "movies.dat": movies}))
    assert data.movies()["title"].to_pylist() == ["A\x85B (1990)"]


@pytest.mark.parametrize(
    ("title", "year"),
    [
        ("Toy Story (1995)", 1995),
        ("96 Minutes (2011) ", 2011),
        ("Death Note: Desu nôto (2006–2007)", 2006),
        ("Fawlty Towers (1975-1979)", 1975),
        ("Going On (2009– )", 2009),
        ("2001: A Space Odyssey (1968)", 1968),
        ("Nineteen Eighty-Four (1984) (1956)", 1956),
        ("Blade Runner 2049", None),
        ("Short (95)", None),
    ],
)
def test_the_year_is_the_last_one_in_parentheses(title: str, year: int | None) -> None:
    assert title_year(title) == year


def test_a_folder_without_rating_files_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no rating files in `.*`\n\nhint: expected ratings.csv, ratings.dat, u.data"):
        open_movielens(tmp_path)


def test_a_missing_path_says_how_to_get_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder `.*nowhere`\n\nhint: `falconet data get"):
        open_movielens(tmp_path / "nowhere")


def test_a_missing_film_file_is_named_with_what_is_there(tmp_path: Path) -> None:
    write_folder(tmp_path, {"ratings.csv": CSV["ratings.csv"], "tags.csv": b""})
    with pytest.raises(DataError, match=r"has `ratings.csv` but no `movies.csv`\n\nhint: it has ratings.csv, tags.csv"):
        open_movielens(tmp_path)


def test_two_releases_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", CSV)
    write_folder(tmp_path / "b", U)
    with pytest.raises(DataError, match=r"holds 2 data sets\n\nhint: name the folder"):
        open_movielens(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "ratings.csv",
            b"userId,movieid,rating,timestamp\n",
            r"ratings.csv` has no column `movieId`.*mean `movieid`\? .*rat",
        ),
        ("ratings.csv", b"a,b\n1,2\n", r"ratings.csv` has no column `userId`\n\nhint: available: a, b"),
        (
            "ratings.csv",
            b"",
            r"ratings.csv` is empty\n\nhint: its first line should be userId,movieId,rating,timestamp",
        ),
        ("ratings.csv", b"userId,userId,movieId,rating,timestamp\n", "two columns of one name"),
        (
            "ratings.csv",
            CSV["ratings.csv"] + b"1,2,3\n",
            r"ratings.csv`, line 5: 3 values where 4 are .*\n\nhint: .*`1,2,3`",
        ),
        ("ratings.csv", CSV["ratings.csv"] + b"1,,3,4\n", "line 5: movieId is ``, not a whole number of 32 bits"),
        ("ratings.csv", CSV["ratings.csv"] + b"1,2,good,4\n", "line 5: rating is `good`, not a number"),
        ("ratings.csv", CSV["ratings.csv"] + b"1,2,nan,4\n", "line 5: rating is `nan`, not a number"),
        ("ratings.csv", CSV["ratings.csv"] + b"\n3000000000,2,3,4\n", "line 6: userId is `3000000000`, not a whole"),
        (
            "ratings.csv",
            CSV["ratings.csv"] + b"1,2,3,4.5\n",
            "line 5: timestamp is `4.5`, not a whole number of 64 bits",
        ),
        ("ratings.csv", "userId,movieId".encode("utf-16"), "ratings.csv`, line 1: byte 0xff is not UTF-8"),
        (
            "ratings.csv",
            CSV["ratings.csv"] + b"\xff\xfe,2,3,4\n",
            r"line 5: userId is `\\xff\\xfe`, not a whole number",
        ),
        ("movies.csv", b"movieId,Title,genres\n1,a,b\n", r"movies.csv` has no column `title`.*did you mean `Title`\?"),
        ("movies.csv", CSV["movies.csv"] + b"40,X\n", "movies.csv`, line 5: 2 values where 3 are expected"),
        ("movies.csv", CSV["movies.csv"] + b"x,X (1990),Drama\n", "line 5: movieId is `x`, not a whole number"),
        (
            "movies.csv",
            CSV["movies.csv"] + b"20,X,Drama\n",
            r"line 5: movieId 20 is there twice\n\nhint: first on line 3",
        ),
        ("movies.csv", CSV["movies.csv"] + "40,Amélie,Drama\n".encode("latin-1"), "line 5: byte 0xe9 is not UTF-8"),
        ("movies.csv", CSV["movies.csv"] + b'40,"Amelie,Drama\n', "movies.csv`, line 5: unexpected end of data"),
    ],
)
def test_a_wrong_csv_is_told_with_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    data = open_movielens(write_folder(tmp_path / "a", {**CSV, name: content}))
    with pytest.raises(DataError, match="(?s)" + message):
        (list(data.ratings()), data.movies())


@pytest.mark.parametrize(
    ("form", "name", "content", "message"),
    [
        (
            "1m",
            "ratings.dat",
            b"1::2::3::4\n1::2::3\n",
            r"ratings.dat`, line 2: 3 values .*\n\nhint: the line is `1::2::3`",
        ),
        ("10m", "movies.dat", MOVIES_DAT.encode("latin-1"), r"movies.dat`, line 1: byte 0xe9 is not UTF-8"),
        ("10m", "movies.dat", b"1::a\n", "movies.dat`, line 1: 2 values where 3 are expected"),
        ("100k", "u.data", b"1\t2\t3\t4\n1,2,3,4\n", "u.data`, line 2: 1 values where 4 are expected"),
        ("100k", "u.item", b"10|a|b|c|d|1|0\n", "u.item`, line 1: 7 values where 9 are expected"),
        ("100k", "u.item", b"10|a|b|c|d|1|0|2|0\n", r"u.item`, line 1: genre flags are 1\|0\|2\|0, not 0 and 1"),
        (
            "100k",
            "u.genre",
            b"unknown|0\nAction|2\n",
            r"u.genre`, line 2: `Action\|2`\n\nhint: expected a genre and `\|1`",
        ),
    ],
)
def test_a_wrong_old_file_is_told_with_file_and_line(
    tmp_path: Path, form: str, name: str, content: bytes, message: str
) -> None:
    data = open_movielens(write_folder(tmp_path / "a", {**FORMATS[form], name: content}))
    with pytest.raises(DataError, match=message):
        (list(data.ratings()), data.movies())


def test_line_numbers_are_right_in_later_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = "".join(f"{i},2,3.0,4\n" for i in range(100))
    write_folder(tmp_path, {**CSV, "ratings.csv": f"userId,movieId,rating,timestamp\n{good}1,2,bad,4\n{good}".encode()})
    monkeypatch.setattr(container, "BLOCK_BYTES", 64)
    with pytest.raises(DataError, match="line 102: rating is `bad`"):
        list(open_movielens(tmp_path).ratings())


def test_a_binary_file_is_refused_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "BLOCK_BYTES", 64)
    write_folder(tmp_path, {**CSV, "ratings.csv": bytes(200)})
    with pytest.raises(DataError, match="has a line of more than 64 bytes: it is no text file"):
        list(open_movielens(tmp_path).ratings())


def test_a_zip_cut_short_is_refused(tmp_path: Path) -> None:
    whole = write_zip(tmp_path / "ml.zip", CSV, "ml/").read_bytes()
    (tmp_path / "ml.zip").write_bytes(whole[:-30])
    with pytest.raises(DataError, match=r"ml.zip` is not a whole zip file.*\n\nhint: it may be cut short"):
        open_movielens(tmp_path / "ml.zip")


def test_the_rating_file_alone_is_refused_with_its_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "ml", CSV)
    with pytest.raises(
        DataError, match=r"ratings.csv` is no zip file\n\nhint: name the folder the files are in: `.*ml`"
    ):
        open_movielens(folder / "ratings.csv")


def test_a_zip_with_a_changed_byte_is_refused_with_the_file_in_it(tmp_path: Path) -> None:
    path = tmp_path / "ml.zip"
    with zipfile.ZipFile(path, "w") as archive:  # stored, so that the byte is found
        for name, content in CSV.items():
            archive.writestr(name, content)
    path.write_bytes(path.read_bytes().replace(b"1,30,2.5", b"1,30,3.5"))
    with pytest.raises(DataError, match=r"ml.zip!ratings.csv` is not a whole zip file: Bad CRC-32"):
        list(open_movielens(path).ratings())


def test_a_packed_file_that_zipfile_cannot_read_is_explained(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ml.zip", CSV)
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # set the bit that says: encrypted
        at = content.find(signature)
        while at >= 0:
            content[at + flags] |= 1
            at = content.find(signature, at + 1)
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"cannot be unpacked: .*password.*\n\nhint: unzip it yourself"):
        list(open_movielens(path).ratings())


def as_table(path: Path) -> pa.Table:
    return pa.Table.from_batches(list(open_movielens(path).ratings()))


@pytest.mark.parametrize("form", FORMATS)
def test_convert_keeps_rows_order_and_films(tmp_path: Path, form: str, place: str) -> None:
    path = put(tmp_path, FORMATS[form], place)
    out = convert(path, tmp_path / "out")
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*")) == [
        "manifest.json",
        "movies.parquet",
        "ratings",
        "ratings/part-00000.parquet",
    ]
    again = open_movielens(out)
    assert again.release == RELEASES[form]
    assert as_table(out).equals(as_table(path))
    assert again.movies().equals(open_movielens(path).movies())


def test_row_groups_and_parts_have_their_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "ROW_GROUP", 100)
    monkeypatch.setattr(layout, "PART_ROWS", 300)
    monkeypatch.setattr(container, "BLOCK_BYTES", 700)
    text = "".join(f"{i},{i % 7},3.0,{i}\n" for i in range(730))
    write_folder(tmp_path / "a", {**CSV, "ratings.csv": b"userId,movieId,rating,timestamp\n" + text.encode()})
    out = convert(tmp_path / "a", tmp_path / "out")
    sizes = []
    for path in sorted((out / "ratings").iterdir()):
        meta = pq.read_metadata(path)
        sizes.append([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
    assert sizes == [[100, 100, 100], [100, 100, 100], [100, 30]]
    assert as_table(out)["userId"].to_pylist() == list(range(730))


def test_converting_again_does_nothing_until_the_data_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_folder(tmp_path / "a", CSV)
    out = convert(path, tmp_path / "out")
    before = (out / "movies.parquet").stat().st_ino
    convert(path, out)
    assert (out / "movies.parquet").stat().st_ino == before
    assert "converted already" in capsys.readouterr().err
    (path / "ratings.csv").write_bytes(CSV["ratings.csv"] + b"9,10,1.0,5\n")
    convert(path, out)
    assert rows(out)[-1] == (9, 10, 1.0, 5)


def test_a_zip_and_its_folder_convert_to_the_same_bytes(tmp_path: Path) -> None:
    a = convert(write_folder(tmp_path / "ml-tiny", CSV), tmp_path / "a")
    b = convert(write_zip(tmp_path / "ml-tiny.zip", CSV, "ml-tiny/"), tmp_path / "b")
    assert (a / "manifest.json").read_bytes() == (b / "manifest.json").read_bytes()


def test_converting_the_layout_gives_the_layout_again(tmp_path: Path) -> None:
    out = convert(write_folder(tmp_path / "a", CSV), tmp_path / "out")
    copy = convert(out, tmp_path / "copy")
    assert as_table(copy).equals(as_table(out))
    assert [open_movielens(out).release, open_movielens(copy).release] == ["csv", "csv"]
    assert convert(out, out) == out


def test_convert_does_not_replace_what_it_did_not_write(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "a", CSV)
    write_folder(tmp_path / "mine", {"thesis.txt": b"years of work"})
    with pytest.raises(
        ArtifactError, match=r"mine` exists and is no converted data set\n\nhint: choose another folder"
    ):
        convert(path, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_bytes() == b"years of work"


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "a", {**CSV, "ratings.csv": CSV["ratings.csv"] + b"1,2\n"})
    with pytest.raises(DataError, match="line 5"):
        convert(path, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_data_without_ratings_are_refused(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "a", {**CSV, "ratings.csv": b"userId,movieId,rating,timestamp\n"})
    with pytest.raises(DataError, match="has no ratings"):
        convert(path, tmp_path / "out")


def parquet(folder: Path, **columns: object) -> Path:
    """A Parquet layout made by hand."""
    ratings = {"userId": [1], "movieId": [2], "rating": [3.5], "timestamp": [4], **columns}
    (folder / "ratings").mkdir(parents=True)
    pq.write_table(pa.table({k: v for k, v in ratings.items() if v is not None}), folder / "ratings" / "x.parquet")
    movies = {"movieId": [2], "title": ["A (1990)"], "genres": [["Drama"]], "year": [1990]}
    pq.write_table(pa.table(movies), folder / "movies.parquet")
    return folder


def test_a_layout_made_by_hand_is_read_and_keeps_wide_ids(tmp_path: Path) -> None:
    data = open_movielens(parquet(tmp_path / "a", userId=[2**40]))
    batch = next(iter(data.ratings()))
    assert data.release == "parquet"
    assert batch.to_pylist() == [{"userId": 2**40, "movieId": 2, "rating": 3.5, "timestamp": 4}]
    assert str(batch.schema.field("userId").type) == "int64"


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        (
            {"rating": None, "Rating": [1.0]},
            ColumnNotFoundError,
            r"x.parquet` has no column `rating`\n\nhint: did you mean `Rating`",
        ),
        ({"userId": ["a"]}, SchemaError, r"columns of other types: .*\n\nhint: it has userId string"),
        ({"timestamp": pa.array([None], pa.int64())}, DataError, "has 1 nulls in `timestamp`"),
        ({"rating": [float("nan")]}, DataError, "ratings that are not finite"),
    ],
)
def test_a_wrong_layout_is_told_with_its_file(
    tmp_path: Path, columns: dict[str, object], kind: type[FalconetError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        list(open_movielens(parquet(tmp_path / "a", **columns)).ratings())


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a") / "ratings" / "x.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.parquet` is not a whole Parquet file"):
        list(open_movielens(tmp_path / "a").ratings())


def test_a_changed_conversion_is_refused_when_opened(tmp_path: Path) -> None:
    out = convert(write_folder(tmp_path / "a", CSV), tmp_path / "out")
    content = (out / "movies.parquet").read_bytes()
    (out / "movies.parquet").write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match=r"movies\.parquet` has .* bytes, its manifest says"):
        open_movielens(out)


def test_ml_latest_small_has_its_published_numbers(movielens_small: Path, tmp_path: Path) -> None:
    data = open_movielens(movielens_small)
    table, movies = as_table(movielens_small), data.movies()
    assert data.release == "ml-latest-small"
    assert (len(table), len(set(table["userId"].to_pylist())), len(movies)) == (100_836, 610, 9_742)
    assert table.slice(0, 1).to_pylist() == [{"userId": 1, "movieId": 1, "rating": 4.0, "timestamp": 964982703}]
    assert sum(table["rating"].to_pylist()) == 353083.0
    assert movies["year"].null_count == 12
    assert sum(not genres for genres in movies["genres"].to_pylist()) == 34
    assert as_table(convert(movielens_small, tmp_path / "out")).equals(table)
