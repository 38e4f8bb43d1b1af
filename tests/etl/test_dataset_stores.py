"""Object stores, against a local S3 server: what lies there is the same data, and no key is ever shown."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import fs

import falconet as fl
from conftest import need
from falconet import ops
from falconet.compute.dask import DaskExecutor
from falconet.compute.executor import ROW, reading
from falconet.errors import ConfigError, DataError, FalconetError, SchemaError
from falconet.etl.dataset import Dataset
from falconet.etl.object_store import open_store
from falconet.recipe.config import ColumnsConfig, DataConfig, read_recipe
from falconet.recipe.run import raw_fingerprint
from falconet.recipe.source import read_data

KEY, SECRET = "AKIAFALCONETTEST", "no/one+should=see"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    need("moto", find_spec("moto") is not None)
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    fill(bucket := store(f"http://{host}:{port}"))
    assert bucket.get_file_info("lake").type == fs.FileType.Directory
    yield f"http://{host}:{port}"
    server.stop()


def store(endpoint: str) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        region="us-east-1",
        scheme="http",
        endpoint_override=endpoint.removeprefix("http://"),
        allow_bucket_creation=True,
    )


def fill(bucket: fs.S3FileSystem) -> None:
    bucket.create_dir("lake")
    frames = {
        "flat/a.parquet": pl.DataFrame({"x": pl.Series([1, 2], dtype=pl.Int32), "s": ["a", None]}),
        "flat/b.parquet": pl.DataFrame({"s": ["c"], "x": [3]}),
        "flat/deep/c.parquet": pl.DataFrame({"x": [100]}),
        "flat/.hidden.parquet": pl.DataFrame({"x": [100]}),
        "hive/year=2021/day=a%2Fb/a.parquet": pl.DataFrame({"x": [3]}),
        "hive/year=2020/day=c d/b.parquet": pl.DataFrame({"x": [1, 2]}),
    }
    for name, frame in frames.items():
        with bucket.open_output_stream(f"lake/{name}") as out:
            frame.write_parquet(out, row_group_size=1)
    texts = {
        "text/a.csv": "x,s\n1,Zoë\n".encode("latin-1"),
        "text/b.csv": "x,s\n2.5,é\n".encode("latin-1"),
        "clicks/a.jsonl": b'{"user": 1, "item": "a"}\n{"user": 2, "item": "b"}\n',
        "lines/a.jsonl": b'{"x": 1}\n{"y": "a"}\n',
        "broken/a.csv": b"x,s\n1\n",
        "broken/b.parquet": b"PAR1 no",
        "empty/notes.md": b"-",
    }
    for name, content in texts.items():
        with bucket.open_output_stream(f"lake/{name}") as out:
            out.write(content)
    with bucket.open_output_stream("lake/lines/b.jsonl.gz", compression="gzip") as out:
        out.write(b'{"x": 2}\n')
    with (
        bucket.open_output_stream("lake/arrow/a.arrow") as out,
        pa.ipc.new_file(out, pa.schema({"x": pa.int8()})) as ipc,
    ):
        ipc.write_table(pa.table({"x": pa.array([1, None], pa.int8())}))


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "DEFAULT_REGION", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.fixture
def options(endpoint: str) -> dict[str, Any]:
    return {"access_key_id": KEY, "secret_access_key": SECRET, "endpoint_url": endpoint}


FLAT = [(1, "a"), (2, None), (3, "c")]


@pytest.mark.parametrize(
    "source",
    [
        "s3://lake/flat",
        "s3://lake/flat/",
        Path("s3://lake/flat"),
        "s3a://lake/flat/*.parquet",
        "s3://lake/f*/?.parquet",
        ["s3://lake/flat/a.parquet", "s3://lake/flat/b.parquet"],
    ],
)
def test_a_folder_a_glob_and_a_list_of_a_bucket_are_the_same_rows(options: dict[str, Any], source: Any) -> None:
    data = Dataset(source, storage_options=options)
    assert data.schema == {"x": pl.Int64, "s": pl.String}
    assert data.scan().collect().rows() == FLAT
    assert data.rows == 3
    parts = [
        part.scan(row_numbers=True).collect() for part in Dataset(source, storage_options=options, part_size=1).parts()
    ]
    assert [frame.height for frame in parts] == [1, 1, 1]
    assert pl.concat(parts)[ROW].to_list() == [0, 1, 2]
    assert data.fingerprint == Dataset("s3://lake/flat", storage_options=options).fingerprint


def test_two_stars_enter_the_folders_of_a_bucket(options: dict[str, Any]) -> None:
    for pattern in ("s3://lake/flat/**/*.parquet", "s3://lake/flat/**"):
        data = Dataset(pattern, storage_options=options, columns=["x"])
        assert data.scan().collect()["x"].to_list() == [1, 2, 3, 100]


def test_hive_folders_of_a_bucket_are_columns(options: dict[str, Any]) -> None:
    for source in ("s3://lake/hive", "s3://lake/hive/**/*.parquet"):
        data = Dataset(source, storage_options=options)
        assert data.schema == {"x": pl.Int64, "year": pl.Int64, "day": pl.String}
        assert data.scan().collect().rows() == [(1, 2020, "c d"), (2, 2020, "c d"), (3, 2021, "a/b")]


def test_text_and_arrow_files_of_a_bucket_are_converted_here(options: dict[str, Any]) -> None:
    text = Dataset("s3://lake/text", storage_options=options, encoding="latin-1")
    assert text.scan().collect().rows() == [(1.0, "Zoë"), (2.5, "é")]
    assert Dataset("s3://lake/lines", storage_options=options).scan().collect().rows() == [
        (1, None),
        (None, "a"),
        (2, None),
    ]
    assert Dataset("s3://lake/arrow", storage_options=options).scan().collect().rows() == [(1,), (None,)]
    assert all(part.storage_options == () for part in text.parts())


def test_what_other_programs_call_the_settings_is_understood(endpoint: str) -> None:
    for options in (
        {"key": KEY, "secret": SECRET, "endpoint_url": endpoint},
        {
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_endpoint_url": endpoint,
            "aws_region": "eu-west-1",
        },
        {"anon": True, "endpoint": endpoint},
    ):
        assert Dataset("s3://lake/flat", storage_options=options).scan().collect().rows() == FLAT


def test_the_environment_says_what_is_not_given_and_its_keys_stay_there(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    data = Dataset("s3://lake/flat")
    assert data.scan().collect().rows() == FLAT
    assert dict(data.parts()[0].storage_options) == {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
    }


def test_a_recipe_reads_a_bucket_with_the_keys_of_the_environment(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    plain = read_recipe(Path(fl.__file__ or "").parent / "recipe" / "demo.toml")
    recipe = replace(
        plain,
        data=DataConfig(reader="files", path="s3://lake/clicks"),
        columns=ColumnsConfig(user="user", item="item", time=None, rating=None),
    )
    assert read_data(recipe, tmp_path).interactions.scan().collect().rows() == [(1, "a"), (2, "b")]
    before = raw_fingerprint(recipe)
    with store(endpoint).open_output_stream("lake/clicks/b.jsonl") as out:
        out.write(b'{"user": 3, "item": "c"}\n')
    assert raw_fingerprint(recipe) != before
    store(endpoint).delete_file("lake/clicks/b.jsonl")
    assert raw_fingerprint(recipe) == before


def test_parts_travel_with_what_they_need(options: dict[str, Any], dask_executor: DaskExecutor) -> None:
    data = Dataset("s3://lake/hive", storage_options=options, part_size=1)
    assert dask_executor.map(lambda part: part.scan().collect().rows(), data.parts()) == [
        [(1, 2020, "c d")],
        [(2, 2020, "c d")],
        [(3, 2021, "a/b")],
    ]
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(data, executor=dask_executor)
    assert fitted.transform(data).collect()["x"].to_list() == [3, 4, 5]


def test_no_key_is_shown_or_saved(options: dict[str, Any], tmp_path: Path) -> None:
    data = Dataset("s3://lake/flat", storage_options=options)
    fitted = fl.Workflow(["s"] >> ops.Categorify()).fit(data)
    fitted.save(tmp_path / "workflow")
    opened, _ = open_store("s3://lake/flat", options)
    shown = [repr(data), repr(data.parts()), str(data.parts()[0]), repr(opened), repr(data._files), data.fingerprint]
    saved = [
        path.read_bytes().decode(errors="replace") for path in (tmp_path / "workflow").rglob("*") if path.is_file()
    ]
    assert saved
    for text in [*shown, *saved]:
        assert KEY not in text
        assert SECRET not in text


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("s3://nolake/flat", DataError, "no bucket `nolake` in s3://"),
        ("s3://nolake/*.parquet", DataError, "no bucket `nolake` in s3://"),
        (["s3://nolake/a.parquet"], DataError, "no bucket `nolake` in s3://"),
        ("s3://lake/nothing", DataError, "no object or folder `s3://lake/nothing`"),
        ("s3://lake/flat/z*.parquet", DataError, r"no object matches `s3://lake/flat/z\*.parquet`"),
        (["s3://lake/flat"], DataError, "`s3://lake/flat` is no object"),
        ("s3://lake/empty", DataError, "no Parquet files in `s3://lake/empty`"),
        ("s3://lake/empty/notes.md", DataError, "`s3://lake/empty/notes.md` is neither Parquet nor CSV"),
        ("s3://lake/broken/a.csv", DataError, "`s3://lake/broken/a.csv`, line 2: 1 values where 2 are expected"),
        ("s3://lake/broken/b.parquet", DataError, "`s3://lake/broken/b.parquet` is not a whole Parquet file"),
        ("s3://lake/flat/**/*.parquet", SchemaError, "`s3://lake/flat/deep/c.parquet` has no column `s`"),
        ("s3:///flat", DataError, "names no bucket"),
        ("ftp://lake/flat", DataError, r"ftp:// addresses are not read[\s\S]*s3://"),
        ("s3://someone:secret@lake/flat", ConfigError, "address holds credentials"),
        (["s3://lake/flat/a.parquet", "here.parquet"], ConfigError, "`here.parquet` is a path on this machine"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_bucket_is_named(
    options: dict[str, Any], source: Any, error: type[FalconetError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        Dataset(source, storage_options=options)
    text = "".join(traceback.format_exception(caught.value))
    assert SECRET not in text
    assert "someone:secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"acces_key_id": KEY}, r"storage_options has `acces_key_id`[\s\S]*`access_key_id`"),
        ({"access_key_id": 7}, r"storage_options: `access_key_id` is a int"),
        ({"access_key_id": KEY, "key": KEY}, "has both `access_key_id` and `key`, which are one setting"),
        ({"aws_region": "x", "AWS_REGION": "x"}, "has `AWS_REGION`, which s3:// does not know"),
        ({"anon": "perhaps"}, "`anon` is neither true nor false"),
        ({"endpoint_url": "localhost:9000"}, r"`endpoint_url` is no address[\s\S]*https://"),
        ({"endpoint_url": "http://me:secret@localhost"}, "`endpoint_url` is no address"),
    ],
)
def test_storage_options_are_checked_without_being_shown(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Dataset("s3://lake/flat", storage_options=given)
    assert KEY not in str(caught.value)
    assert "me:secret" not in str(caught.value)


class Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_access_that_is_refused_says_where_credentials_come_from() -> None:
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    options = {"anonymous": True, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
    for source in ("s3://lake/flat", "s3://lake/flat/*.parquet"):
        with pytest.raises(DataError, match=r"access to [\s\S]* is refused: [\s\S]*AWS_ACCESS_KEY_ID"):
            Dataset(source, storage_options=options)
    server.shutdown()
    server.server_close()
    thread.join()


def test_nobody_at_the_endpoint_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DataError, match=rf"{address} cannot be reached for `s3://lake/flat`"):
            Dataset("s3://lake/flat", storage_options={"anonymous": True, "endpoint_url": address})


def test_an_object_that_is_gone_is_an_error_of_the_read(endpoint: str, options: dict[str, Any]) -> None:
    part = Dataset("s3://lake/flat", storage_options=options).parts()[0]
    with (
        pytest.raises(DataError, match=r"`s3://lake/gone.parquet` cannot be read: [^<]* 404 Not Found$") as caught,
        reading("`s3://lake/gone.parquet`"),
    ):
        replace(part, path="s3://lake/gone.parquet").scan().collect()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_other_stores_go_through_the_same_gate() -> None:
    gs, path = open_store("gs://lake/a/b", {"anonymous": True})
    assert (gs.scheme, gs.bucket, path) == ("gs", "lake", "a/b")
    assert isinstance(gs.filesystem, fs.GcsFileSystem)
    assert dict(gs.polars) == {"google_skip_signature": "true"}
    assert open_store("gs://lake/a/b", {"token": "anon"}) == (gs, path)
    az, path = open_store("az://lake/a", {"account_name": "me", "account_key": "c2VjcmV0"})
    assert isinstance(az.filesystem, fs.AzureFileSystem)
    assert dict(az.polars) == {"azure_storage_account_name": "me", "azure_storage_account_key": "c2VjcmV0"}
    assert "c2VjcmV0" not in repr(az)
    with pytest.raises(ConfigError, match=r"storage_options has `region`, which gs:// does not know"):
        open_store("gs://lake/a", {"region": "x"})
