"""Models as files that run without falconet: what is written, that it is right, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from falconet.batch import Batch, Ragged
from falconet.cli.main import main
from falconet.errors import ArtifactError, ConfigError
from falconet.io.artifact import write_artifact
from falconet.models import DIN, EASE, IALS, MLP, GRU4Rec, Model, TwoTower, programs
from falconet.models.closed_form import Interactions
from falconet.models.programs import export_parts, load_program, parts_of
from falconet.models.store import save_model
from falconet.nn.export import export, flat
from falconet.testing.models import EXAMPLE

Save = Callable[..., Path]

PAGE = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
(WITHOUT,) = re.findall(r"```python\n(# without_falconet\.py\n.*?)```", PAGE, re.S)
ALONE = f"""
import sys
sys.modules["falconet"] = None
sys.modules["torch"] = None
{WITHOUT}
assert found.shape[0] == 3
"""


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Saves a new model of a kind; gives its folder."""

    def save(kind: type[Model], folder: str = "model", **config: Any) -> Path:
        torch.manual_seed(0)
        model = kind.from_schema(EXAMPLE, kind.Config(**config) if config else kind.debug())
        save_model(model, tmp_path / folder)
        return tmp_path / folder

    return save


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["falconet", "export", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None)


def test_an_onnx_model_runs_without_falconet_and_torch(save: Save, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "out" / "ranker.onnx"
    (one,), refused = export_parts(save(MLP, hidden=(), columns=("item", "history", "age")), file, "onnx")
    assert (one.part.name, refused) == ("ranker", {})
    assert one.difference <= one.bound
    said = json.loads(file.with_name("ranker.onnx.json").read_text())
    assert [(x["name"], x["dtype"], x["shape"]) for x in said["inputs"]] == [
        ("item", "int32", ["rows"]),
        ("history.values", "int32", ["values of history"]),
        ("history.offsets", "int64", ["rows + 1"]),
        ("age", "float32", ["rows"]),
    ]
    assert said["check"] == {"rows": [1, 7, 64], "largest_difference": one.difference, "bound": one.bound}
    done = subprocess.run([sys.executable, "-c", ALONE, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_both_encoders_of_a_retriever_are_programs_of_what_they_read(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, save(TwoTower), "--torch-export", tmp_path / "two.pt2")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in lines] == [["retriever-user,", "TwoTower:"], ["retriever-item,", "TwoTower:"]]
    assert all("largest difference" in line for line in lines)
    for part, columns in (("user", {"history", "age", "hour"}), ("item", {"item", "genres", "year"})):
        file = tmp_path / f"two.retriever-{part}.pt2"
        said = json.loads(file.with_name(f"{file.name}.json").read_text())
        assert {one["column"] for one in said["inputs"]} == columns
        example = load_file(file.with_name(f"{file.name}.example.safetensors"))
        output = example.pop("output")
        assert output.shape == (3, 8)
        torch.testing.assert_close(load_program(file, "torch.export")(example), output)


def test_a_scorer_counts_what_comes_twice_once_in_a_program_too(save: Save, tmp_path: Path) -> None:
    codes = torch.arange(60)
    model = EASE.from_schema(EXAMPLE, EASE.debug()).fit(Interactions(codes % 7, codes % 29 + 1))
    save_model(model, tmp_path / "model")
    part = parts_of(tmp_path / "model")["retriever-scores"]
    program = export(part.model, part.batch(2, only=["history"]), part.of).module()
    twice, once = ([[5, 3, 5, 3, 3], [], [7]], [[3, 5], [], [7]])
    found = [program(flat(Batch.of({"history": Ragged.of(x, torch.int32)}))) for x in (twice, once)]
    assert found[0].abs().max() > 0
    torch.testing.assert_close(found[0], found[1])


def test_what_cannot_be_a_program_is_left_out_with_the_reason(save: Save, tmp_path: Path) -> None:
    folder = save(IALS)
    (one,), refused = export_parts(folder, tmp_path / "m.pt2", "torch.export")
    assert (one.file, one.part.name) == (tmp_path / "m.retriever-item.pt2", "retriever-item")
    assert list(refused) == ["retriever-user"]
    with pytest.raises(ConfigError, match="`retriever-user` cannot be exported: iALS solves a system of equations"):
        export_parts(folder, tmp_path / "u.pt2", "torch.export", part="retriever-user")
    with pytest.raises(ConfigError, match="cannot trace recurrent layers"):
        export_parts(save(GRU4Rec), tmp_path / "u.pt2", "torch.export", part="retriever-user")


def test_a_program_that_differs_leaves_no_file(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = programs.load_program
    monkeypatch.setattr(programs, "load_program", lambda *a: lambda columns: right(*a)(columns) + 1e-3)
    folder, out = save(TwoTower), tmp_path / "out"
    with pytest.raises(ArtifactError, match=r"`retriever-item` as a program is 0\.001 away from the model, the bound"):
        export_parts(folder, out / "m.pt2", "torch.export", part="retriever-item")
    assert list(out.iterdir()) == []


def test_a_number_that_is_none_is_no_small_difference() -> None:
    batch = Batch.of({"x": torch.ones(2)})
    wrong: list[Callable[[Any], Any]] = [lambda c: c["x"] / 0, lambda c: c["x"][:1], lambda c: c["x"] * torch.nan]
    for program in wrong:
        assert programs.compare(lambda b: torch.ones(2), program, [batch])[0] == float("inf")


def test_the_models_of_bundles_and_work_folders_have_names(save: Save, tmp_path: Path) -> None:
    for name, kind in (("ranker", DIN), ("near", TwoTower), ("linear", EASE)):
        save(kind, f"work/runs/{name}/model")
    names = {"ranker", "near-user", "near-item", "linear-scores"}
    assert set(parts_of(tmp_path / "work")) == names
    with write_artifact(tmp_path / "bundle", "bundle") as draft:
        (tmp_path / "work/runs/ranker/model").rename(draft.path / "ranker")
        for name in ("near", "linear"):
            (draft.path / "retrievers").mkdir(exist_ok=True)
            (tmp_path / "work/runs" / name / "model").rename(draft.path / "retrievers" / name)
    assert set(parts_of(tmp_path / "bundle")) == names


def test_what_is_asked_for_wrongly_is_said(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(TwoTower)
    with pytest.raises(ConfigError, match=r"has no part `retriever`[\s\S]*did you mean `retriever-"):
        export_parts(folder, tmp_path / "m.pt2", "torch.export", part="retriever")
    with pytest.raises(ConfigError, match=r"m\.bin` is no name for what is written[\s\S]*like model\.pt2"):
        export_parts(folder, tmp_path / "m.bin", "torch.export")
    with pytest.raises(ArtifactError, match=r"no model at[\s\S]*a bundle or the `--out`"):
        export_parts(tmp_path / "nothing", tmp_path / "m.pt2", "torch.export")
    (tmp_path / "m.pt2.json").touch()
    with pytest.raises(ArtifactError, match=r"m\.pt2\.json` exists already"):
        export_parts(folder, tmp_path / "m.pt2", "torch.export", part="retriever-item")
    with write_artifact(tmp_path / "table", "features"):
        pass
    with pytest.raises(ArtifactError, match="is a features, which has no model"):
        parts_of(tmp_path / "table")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"ONNX models need onnxruntime, which is not installed"):
        export_parts(folder, tmp_path / "m.onnx", "onnx")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no file to write is named"),
        (("--onnx", "a.onnx", "--torch-export", "a.pt2"), "`export` writes one kind of file at a time"),
    ],
)
def test_one_kind_of_file_is_written_at_a_time(
    options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["falconet", "export", "model", *options])
    with pytest.raises(SystemExit, match="1"):
        main()
    error = capsys.readouterr().err
    assert said in error
    assert "--torch-export FILE.pt2 or --onnx FILE.onnx" in error
