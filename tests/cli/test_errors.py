"""A user's mistake ends with what, where, what was given, and a hint; never with a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from falconet.cli import main

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "src/falconet/recipe/demo.toml"


def falconet(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "falconet", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_explained(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
    assert "hint: " in done.stderr
    for word in words:
        assert word in done.stderr
    assert done.stdout == ""


def test_a_folder_without_rating_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = falconet("run", DEMO, "--set", "data.path=empty", cwd=tmp_path)
    assert_explained(done, "empty")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert_explained(falconet("run", DEMO, "--set", "data.path=nowhere", cwd=tmp_path), "`nowhere`", "data.path")


def test_a_csv_with_a_missing_column(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "ratings.csv").write_text("userId,movie,rating,timestamp\n1,1,4.0,1\n")
    (folder / "movies.csv").write_text("movieId,title,genres\n1,A (1990),Drama\n")
    done = falconet("run", DEMO, "--set", "data.path=small", cwd=tmp_path)
    assert_explained(done, "ratings.csv", "`movieId`")


def test_a_recipe_with_a_misspelt_key(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(DEMO.read_text().replace("epochs = ", "epoch = ", 1))
    done = falconet("run", recipe, cwd=tmp_path)
    assert_explained(done, "`recipe.retriever.train` has an unknown key `epoch`", "did you mean `epochs`?")
    assert {p.name for p in tmp_path.iterdir()} == {"recipe.toml"}


@pytest.mark.parametrize("command", ["train", "evaluate", "bundle"])
def test_a_step_before_its_inputs(command: str, tmp_path: Path) -> None:
    assert_explained(falconet(command, DEMO, cwd=tmp_path), "no features at", "`falconet prepare` makes it")


def test_a_bundle_that_is_not_there(tmp_path: Path) -> None:
    assert_explained(falconet("serve", "nowhere", "--port", "0", cwd=tmp_path), "nowhere")


def test_an_unknown_command_is_bad_usage(tmp_path: Path) -> None:
    assert falconet("srve", cwd=tmp_path).returncode == 2


def test_an_out_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    done = falconet("run", DEMO, "--set", "data.path=.", "--out", "taken", cwd=tmp_path)
    assert_explained(done, "`taken` cannot be worked in", "another --out")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_file_of_items_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,item\n1,1\n")
    settings = [
        *("--set", "data.reader=files", "--set", "data.path=rows.csv", "--set", "data.items=items.csv"),
        *("--set", "columns.user=user", "--set", "columns.item=item"),
    ]
    assert_explained(falconet("run", DEMO, *settings, cwd=tmp_path), "`items.csv`", "`data.items` of the recipe")


def main_with(app: str) -> subprocess.CompletedProcess[str]:
    """The command's `main` around another body."""
    code = f"from falconet.cli import main\ndef app():\n    {app}\nmain.app = app\nmain.main()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_a_stopped_command_takes_its_private_files_with_it() -> None:
    done = main_with(
        "import os, signal; from falconet.io.private import private_folder; "
        "print(private_folder(), flush=True); os.kill(os.getpid(), signal.SIGTERM)"
    )
    assert done.returncode == 143, done.stderr
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).parent.exists()


def test_what_the_system_refuses_is_one_line() -> None:
    done = main_with("import os; os.mkdir('nowhere/below')")
    assert (done.returncode, done.stderr) == (1, "error: No such file or directory: `nowhere/below`\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("nothing says what to evaluate", "--protocol NAME --data FOLDER")),
        (("--protocol", "vae"), ("nothing says what to evaluate",)),
        ((DEMO, "--protocol", "vae"), ("--protocol and --data are for an evaluation without a recipe",)),
        (("--protocol", "ms", "--data", "."), ("there is no protocol `ms`", "ms-stratified")),
        (("--protocol", "vae", "--data", "nowhere"), ("no file or folder `nowhere`", "u.data")),
    ],
    ids=["nothing", "no data", "both", "unknown", "nowhere"],
)
def test_an_evaluation_that_nothing_describes(
    arguments: tuple[object, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    assert_explained(falconet("evaluate", *arguments, cwd=tmp_path), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EROFS, "another folder"), (errno.EACCES, "another folder"), (errno.ENOSPC, "make room")]
)
def test_what_the_system_refuses_has_a_hint(
    number: int, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise OSError(number, os.strerror(number), "out/part-0")

    monkeypatch.setattr(main, "app", refused)
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"error: {os.strerror(number)}: `out/part-0`" in said
    assert hint in said.partition("hint: ")[2]
