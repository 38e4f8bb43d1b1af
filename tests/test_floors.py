"""The architecture as a test: imports point down, and each heavy dependency has one gate (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "falconet"

# The longest matching prefix rules. A module may import lower floors and its own folder.
FLOORS = {
    "errors": 0, "arguments": 0.2, "registry": 0.5, "hashing": 0.5, "progress": 0.5, "memory": 0.5, "plugins": 0.5,
    "schema": 1, "config": 1, "batch": 1, "nn": 1.5, "compute": 1.5,
    "io": 2, "columns": 2.5, "train.runtime": 2, "train.place": 2, "train.meeting": 2,
    "loader": 3, "metrics": 3, "retrieval": 3, "datasets": 3,
    "etl": 3, "etl.ops": 3.2, "ops": 3.3, "etl.split": 3.4, "etl.online": 3.4, "etl.graph": 3.4, "etl.workflow": 3.5,
    "etl.rejoin": 3.6,
    "models": 4, "train": 5, "evaluation": 6, "serve": 7, "serve.http": 8, "client": 8,
    "recipe": 9, "cli": 10, "__main__": 11, "testing": 12,
}  # fmt: skip

GATES = {
    "dask": {"compute.cluster"},
    "dask_cuda": {"compute.cluster"},
    "distributed": {"compute.cluster"},
    "faiss": {"retrieval.faiss"},
    "lightning": {"loader.lightning"},
    "onnx": {"nn.onnx"},
    "onnxruntime": {"nn.onnx"},
    "onnxscript": {"nn.onnx"},
    "fastapi": {"serve.http"},
    "starlette": {"serve.http"},
    "uvicorn": {"serve.http.workers"},
    "prometheus_client": {"serve.metrics"},
    "psycopg": {"serve.stores.postgres"},
    "redis": {"serve.stores.redis"},
    "typer": {"cli"},
}

NO_TORCH = (
    "etl",
    "ops",
    "compute",
    "datasets",
    "io",
    "schema",
    "config",
    "errors",
    "registry",
    "hashing",
    "progress",
    "memory",
)
NO_POLARS = (
    "loader",
    "columns",
    "nn",
    "models",
    "metrics",
    "train",
    "retrieval",
    "datasets",
    "io",
    "schema",
    "config",
    "batch",
)
NOT_ON_TRAINING_MACHINES = {"polars", "dask", "distributed", "pydantic", "typer", "fastapi", "uvicorn"}

NO_MODELS = {"models", "models.store", "models.index", "models.programs", "models.example"}  # files beside the models

MODULES = sorted(
    p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for p in ROOT.rglob("*.py")
    if p != ROOT / "__init__.py"
)


def imports(module: str) -> set[str]:
    """Every module imported anywhere in the file, type checking apart, as dotted names."""
    path = ROOT / (module.replace(".", "/") + ".py")
    tree = ast.parse((path if path.exists() else ROOT / module.replace(".", "/") / "__init__.py").read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = node.module in {"falconet", *(f"falconet.{m}" for m in MODULES)}
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (
                {n for n in names if n.removeprefix("falconet.") in MODULES} or {node.module}
                if inner
                else {node.module}
            )
    return found


def own(module: str) -> set[str]:
    return {name.removeprefix("falconet.") for name in imports(module) if name.startswith("falconet.")}


def outside(module: str) -> set[str]:
    return {name.split(".")[0] for name in imports(module)} - {"falconet"}


def floor(module: str) -> float:
    prefixes = [p for p in FLOORS if module == p or module.startswith(p + ".")]
    assert prefixes, f"`{module}` has no floor: give it one here and in docs/architecture.md"
    return FLOORS[max(prefixes, key=len)]


def within(module: str, parts: tuple[str, ...] | set[str]) -> bool:
    return any(module == part or module.startswith(part + ".") for part in parts)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    folder = module.split(".")[0]
    up = {
        n for n in own(module) if floor(n) > floor(module) or (floor(n) == floor(module) and n.split(".")[0] != folder)
    }
    assert not up, f"`{module}` (floor {floor(module)}) imports {up} above its own floor"


@pytest.mark.parametrize("module", MODULES)
def test_each_heavy_dependency_has_one_gate(module: str) -> None:
    beyond = {name for name in outside(module) if name in GATES and not within(module, GATES[name])}
    assert not beyond, f"`{module}` imports {beyond}; only {[GATES[b] for b in beyond]} may"


@pytest.mark.parametrize("module", [m for m in MODULES if within(m, NO_TORCH)])
def test_etl_has_no_torch(module: str) -> None:
    assert not outside(module) & {"torch", "safetensors"}


@pytest.mark.parametrize("module", [m for m in MODULES if within(m, NO_POLARS)])
def test_training_machines_need_no_etl(module: str) -> None:
    assert not outside(module) & NOT_ON_TRAINING_MACHINES
    assert not {n for n in own(module) if within(n, ("etl", "ops", "compute"))}


@pytest.mark.parametrize("module", [m for m in MODULES if within(m, ("models",)) and m not in NO_MODELS])
def test_a_model_file_has_no_machinery(module: str) -> None:
    kinds = ("base", "closed_form", "sequence", "vae", "ranker", "multi_task")  # what models of one kind share
    allowed = ("nn", "schema", "registry", "batch", "errors", *(f"models.{kind}" for kind in kinds))
    if module == "models.base":
        allowed = (*allowed, "arguments", "config")  # what is wrong with settings is said for all
    assert not {n for n in own(module) if not within(n, allowed)}


@pytest.mark.parametrize("module", [m for m in MODULES if within(m, ("serve",))])
def test_serving_never_imports_training(module: str) -> None:
    assert not {n for n in own(module) if within(n, ("train", "loader", "compute.dask"))}


@pytest.mark.parametrize("folder", ["etl/ops"])
def test_siblings_do_not_import_each_other(folder: str) -> None:
    prefix = folder.replace("/", ".") + "."
    for module in (m for m in MODULES if m.startswith(prefix)):
        assert not {n for n in own(module) if n.startswith(prefix)}, f"`{module}` imports a sibling"


FRONT_DOOR = """
import sys
import falconet
{call}
heavy = {{"torch", "polars", "pyarrow", "dask", "fastapi"}} & set(sys.modules)
assert not heavy, heavy
"""
HELP = """
from falconet.cli.main import main
sys.argv = ["falconet", "--help"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""


@pytest.mark.parametrize("call", ["", HELP], ids=["import", "help"])
def test_the_front_door_is_light(call: str) -> None:
    command = [sys.executable, "-W", "error", "-c", FRONT_DOOR.format(call=call)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
