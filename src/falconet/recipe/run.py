"""A recipe's steps in order. A step that is complete and unchanged is skipped; one that was killed carries on.

Each step writes one folder (or report.json) whose manifest carries the step's key: the hash of the settings it reads
and of the manifests of its inputs. The key decides what is unchanged, nothing else does.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from falconet.config import config_hash, to_plain
from falconet.errors import ArtifactError, DataError
from falconet.io.artifact import MANIFEST, clean, is_complete, read_manifest
from falconet.plugins import fingerprint, load_modules
from falconet.progress import note
from falconet.recipe.config import Recipe
from falconet.recipe.generations import follow
from falconet.recipe.lock import locked

if TYPE_CHECKING:
    from falconet.recipe.training import Start, Watch

_FEATURES = 2  # the format of what prepare writes: tables of another one are made anew


@dataclass(frozen=True)
class Step:
    """One step: the key of what it would make, whether that is there already, and how to make it.

    `stage` is the name of all the steps that are asked for together.
    """

    name: str
    stage: str
    key: Callable[[], str]
    complete: Callable[[str], bool]
    make: Callable[[str], None]


def run(recipe: Recipe, work: str | Path, *, only: str | None = None) -> dict[str, Any]:
    """Run the steps in the folder `work`; the report where there is one.

    With `only`, the steps of that stage, whose inputs must be there. Raises ArtifactError when another run holds the
    folder.
    """
    from falconet.recipe.check import check, check_packages

    load_modules(recipe.modules)
    check(recipe)
    if only in (None, "bundle"):
        check_packages(recipe)
    work = Path(work)
    return _run([step for step in steps(recipe, work) if only in (None, step.stage)], work)


def compare(recipe: Recipe, work: str | Path) -> dict[str, Any]:
    """Prepare, train what `[[compare]]` names, evaluate it beside Popular and EASE: the report.

    Raises ArtifactError when another run holds the folder.
    """
    work = Path(work)
    return _run([*steps(recipe, work)[:1], _comparison(recipe, work)], work)


def _run(chosen: list[Step], work: Path) -> dict[str, Any]:
    _check_ours(work)
    with locked(work):
        for folder in (work, work / "runs", work / "runs/compare", work / "runs/scout"):
            clean(folder)
        run_steps(chosen)
        if chosen[-1].stage == "bundle":
            follow(work)
    report = work / "report.json"
    return json.loads(report.read_bytes()) if report.is_file() else {}


def run_steps(chosen: list[Step]) -> None:
    """Run steps in their order, in a folder that is locked."""
    for number, step in enumerate(chosen, 1):
        _run_step(step, f" ({number} of {len(chosen)})" if len(chosen) > 1 else "")


def _run_step(step: Step, place: str) -> None:
    key = step.key()
    if step.complete(key):
        note(f"{step.name}: unchanged, skipped")
        return
    note(f"{step.name} …{place}")
    start = time.monotonic()
    step.make(key)
    note(f"{step.name}: done in {time.monotonic() - start:.1f} s")


def settings_of(recipe: Recipe, *names: str) -> Mapping[str, Any]:
    """The tables of a recipe that a step reads, with what all steps read."""
    own = {"modules": fingerprint(recipe.modules)} if recipe.modules else {}
    return {"seed": recipe.seed, **own, **{name: to_plain(getattr(recipe, name)) for name in names}}


def step_key(step: str, reads: Mapping[str, Any], *inputs: str) -> str:
    """The key of what a step makes."""
    return config_hash({"step": step, "settings": reads, "inputs": inputs})


_MEASURED = ("evaluate", "columns", "split", "protocol", "compare")  # what a report depends on beside the models


def _comparison(recipe: Recipe, work: Path) -> Step:
    """The step that evaluates without the recipe's own stages."""
    from falconet.recipe import stages

    return Step(
        "compare",
        "compare",
        lambda: step_key(
            "compare", settings_of(recipe, *_MEASURED), read_manifest(work / "features", "features").sha256
        ),
        lambda k: stages.report_key(work) == k,
        lambda k: stages.compare(recipe, work, step=k),
    )


def steps(recipe: Recipe, work: Path, *, watch: Watch | None = None) -> list[Step]:
    """The recipe's steps in their order. `watch` makes callbacks for the training of the retrievers."""
    # Imported here, so that `falconet --help` loads neither torch nor Polars.
    from falconet.recipe.prepare import prepare

    def prepare_key() -> str:
        data = {**to_plain(recipe.data), "path": None, "items": None, "users": None}
        reads = {**settings_of(recipe, "split", "columns", "prepare"), "data": data, "features": _FEATURES}
        return step_key("prepare", reads, raw_fingerprint(recipe))

    return [
        Step(
            "prepare",
            "prepare",
            prepare_key,
            lambda k: is_prepared(work, k),
            lambda k: prepare(recipe, work, step=k),
        ),
        *model_steps(recipe, work, work / "bundle", watch=watch),
    ]


def model_steps(
    recipe: Recipe, work: Path, bundle: Path, *, watch: Watch | None = None, start: Start | None = None
) -> list[Step]:
    """The steps from features to the folder `bundle`. With `start`, models begin at the weights there."""
    from falconet.recipe import stages
    from falconet.serve.about import FORMAT as ABOUT
    from falconet.serve.bundle import FORMAT as BUNDLE

    several = len(recipe.retriever) > 1

    def settings(*names: str) -> Mapping[str, Any]:
        return settings_of(recipe, *names)

    def model(name: str) -> Mapping[str, Any]:
        """What a retriever's training depends on: not its name, nor what its list counts."""
        plain = to_plain(recipe.retrievers[name])
        return {**settings("columns"), "retriever": {k: v for k, v in plain.items() if k not in ("name", "weight")}}

    def manifest(name: str, kind: str, maker: str) -> str:
        try:
            return read_manifest(work / name, kind).sha256
        except ArtifactError as error:
            raise ArtifactError(
                f"no {kind} at `{work / name}`",
                hint=f"`falconet {maker}` makes it, `falconet run` makes all there is to make, in order",
            ) from error

    def begun(folder: str) -> tuple[str, ...]:
        """What stands for the weights that a run begins with."""
        return () if start is None else (read_manifest(start.work / folder, "run").sha256, str(start.epochs))

    def features() -> str:
        return manifest("features", "features", "prepare")

    def retrievers() -> tuple[str, ...]:
        return tuple(manifest(f"runs/{n}", "run", "train --stage retriever") for n in recipe.retrievers)

    def scouts() -> tuple[str, ...]:
        return tuple(manifest(f"runs/scout/{n}", "run", "train --stage ranker") for n in recipe.retrievers)

    def ranker() -> str:
        return manifest("runs/ranker", "run", "train --stage ranker")

    def candidates() -> str:
        return manifest("candidates", "candidates", "train --stage ranker")

    def trained(name: str, folder: str, make: Callable[[str, str], None], stage: str, title: str) -> Step:
        return Step(
            f"{title} {name}" if several else title,
            stage,
            lambda: step_key(title, model(name), features(), *begun(folder)),
            lambda k: is_complete(work / folder, "run", step=k),
            lambda k: make(name, k),
        )

    def train_retriever(name: str, key: str) -> None:
        stages.train_retriever(recipe, work, name, step=key, watch=watch, start=start)

    def train_scout(name: str, key: str) -> None:
        stages.train_scout(recipe, work, name, step=key, start=start)

    def evaluate_key() -> str:
        reads = {**settings(*_MEASURED), **stages.candidate_settings(recipe)}
        return step_key("evaluate", reads, features(), *retrievers(), candidates(), ranker())

    def measured() -> bool:
        """Whether the report is of the models as they are: a bundle tells what they were found to be worth."""
        try:
            return stages.report_key(work) == evaluate_key()
        except ArtifactError:  # the candidates are not needed any more
            return False

    return [
        *(trained(n, f"runs/{n}", train_retriever, "retriever", "retriever") for n in recipe.retrievers),
        *(trained(n, f"runs/scout/{n}", train_scout, "ranker", "scout") for n in recipe.retrievers),
        Step(
            "candidates",
            "ranker",
            lambda: step_key("candidates", stages.candidate_settings(recipe), features(), *retrievers(), *scouts()),
            lambda k: is_complete(work / "candidates", "candidates", step=k),
            lambda k: stages.make_candidates(recipe, work, step=k),
        ),
        Step(
            "ranker",
            "ranker",
            lambda: step_key("ranker", settings("ranker"), candidates(), *begun("runs/ranker")),
            lambda k: is_complete(work / "runs/ranker", "run", step=k),
            lambda k: stages.train_ranker(recipe, work, step=k, start=start),
        ),
        Step(
            "evaluate",
            "evaluate",
            evaluate_key,
            lambda k: stages.report_key(work) == k,
            lambda k: stages.evaluate(recipe, work, step=k),
        ),
        Step(
            "bundle",
            "bundle",
            lambda: step_key(
                "bundle",
                {
                    **settings("bundle", "columns", "prepare", "retriever"),
                    "verb": recipe.verb,
                    "format": BUNDLE,
                    "about": {"format": ABOUT, "measured": measured()},
                },
                features(),
                *retrievers(),
                ranker(),
            ),
            lambda k: is_complete(bundle, "bundle", step=k),
            lambda k: stages.bundle(recipe, work, bundle, step=k, measured=measured()),
        ),
    ]


def _check_ours(work: Path) -> None:
    """Refuse a folder in which the steps would replace what falconet did not make. A lock says that it is ours."""
    if (work / "lock").exists():
        return
    for name in ("split", "workflow", "features", "candidates", "scout", "bundle", "report.json"):
        if (work / name).exists() and not (work / name / MANIFEST).is_file():
            raise ArtifactError(
                f"`{work / name}` is there already and falconet did not make it", hint="choose another --out"
            )


def is_prepared(work: Path, step: str) -> bool:
    """Whether the features are those of the step, and split and workflow are those the features were made from."""
    if not is_complete(work / "features", "features", step=step):
        return False
    made_from = read_manifest(work / "features", "features").parents
    return all(
        is_complete(work / name, name) and read_manifest(work / name, name).sha256 == made_from.get(name)
        for name in ("split", "workflow")
    )


def raw_fingerprint(recipe: Recipe) -> str:
    """The hash of the contents of the raw files that are read, wherever they lie."""
    from falconet.datasets.movielens import open_movielens
    from falconet.etl.object_store import is_url
    from falconet.etl.paths import find

    for name, given in (("path", recipe.data.path), ("items", recipe.data.items), ("users", recipe.data.users)):
        if given is not None and not (is_url(given) or Path(given).exists() or any(sign in given for sign in "*?[")):
            fetch = "; `falconet data get` fetches a MovieLens release" if recipe.data.reader == "movielens" else ""
            raise DataError(
                f"no file or folder `{given}`, looked for from `{Path.cwd()}`",
                hint=f"`data.{name}` of the recipe, or `--set data.{name}=…`, says where the raw files are{fetch}",
            )
    if recipe.data.reader == "movielens":
        return open_movielens(recipe.data.path).fingerprint()
    total = hashlib.sha256()
    for given in (recipe.data.path, recipe.data.items, *([] if recipe.data.users is None else [recipe.data.users])):
        for file in [] if given is None else find(given, {}):
            one = hashlib.sha256()
            with file.opened() as opened:
                while block := opened.read(8 << 20):
                    one.update(block)
            total.update(file.identity[0].encode() + b"\0" + one.digest())
        total.update(b"\0")
    return total.hexdigest()
