"""The folder that is served: workflow, models, index, catalogue and people, under one manifest that answers for them.

A bundle holds the answers to a few probe requests. Loading asks them again: a bundle that answers differently on this
machine than where it was built is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from falconet.config import from_plain, to_plain
from falconet.errors import ArtifactError, ConfigError, suggest
from falconet.etl.workflow import FittedWorkflow
from falconet.io.artifact import Manifest, read_artifact, read_manifest, write_artifact
from falconet.models.base import Model, Retriever
from falconet.models.closed_form import ClosedForm, ItemScorer
from falconet.models.index import index_of
from falconet.models.ranker import Ranker
from falconet.models.store import load_model
from falconet.nn.settled import read_each, settle
from falconet.progress import note
from falconet.retrieval.candidates import RETRIEVER, CandidateRows
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.faiss import AnnIndex
from falconet.retrieval.scores import ScoreIndex
from falconet.retrieval.sources import Source, Sources
from falconet.schema import FOOTER_KEY, Schema, Tag
from falconet.serve.about import About, read_about, write_about
from falconet.serve.current import bundle_folder
from falconet.serve.engine import Engine
from falconet.serve.features import RequestFeatures
from falconet.serve.nearness import nearness_of
from falconet.serve.onnx_ranker import FILE as ONNX_RANKER
from falconet.serve.onnx_ranker import OnnxRanker, onnx_difference, write_ranker
from falconet.serve.probes import answer_probe, check_probe, probe_requests
from falconet.serve.tables import Catalogue, People, read_table, user_side

FORMAT = 3  # of serving.json and of what lies beside it
KIND = "bundle"
RETRIEVERS = "retrievers"  # folder of the models, by name
INDEXES = "indexes"  # folder of their indexes, by name
_ASKED = 500  # people whose candidates an approximate index is measured by
_NOT_SERVED = ("relevant", "relevant_unknown")  # what users will do in the test has no place in a bundle


@dataclass(frozen=True, kw_only=True)
class ServedRetriever:
    """One of the retrievers of a bundle; `weight` is how much its places count where several lists become one."""

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.name in ("", "..") or Path(self.name).name != self.name:
            raise ConfigError(f"a retriever is called {self.name!r}", hint="a name that a folder can have")


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """serving.json: names, sizes and words. `verb` is what people do with items, as in "because you watched Alien".

    `index`: how vectors are searched; "ann" is approximate (retrieval/faiss.py) and for millions of items. `ranker`:
    what runs the ranker; "onnx" is ONNX Runtime (onnx_ranker.py).

    The build fills in `retrievers`, in their order, and `bias`.
    """

    user: str
    item: str
    candidates: int = 200
    history: int = 50
    verb: str = "chose"
    index: Literal["exact", "ann"] = "exact"
    ranker: Literal["torch", "onnx"] = "torch"
    retrievers: tuple[ServedRetriever, ...] = ()
    bias: bool = False  # whether the last dimension of the first retriever's vectors is a bias, no direction
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.candidates < 1 or self.history < 1:
            raise ConfigError(
                f"a bundle with {self.candidates} candidates and a history of {self.history}", hint="at least 1 each"
            )


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory, ready to answer: nothing of its folder is read later.

    `workflow`: from raw values to features, without targets and histories. `source`: the path that was asked for, where
    another may come to stand.
    """

    path: Path
    manifest: Manifest
    config: ServingConfig
    engine: Engine
    workflow: FittedWorkflow
    about: About = field(default_factory=About)
    source: Path = Path()

    @property
    def name(self) -> str:
        """The first twelve digits of the manifest's hash: two bundles with one name are the same."""
        return self.manifest.sha256[:12]


def load_bundle(path: str | Path) -> Bundle:
    """The bundle in a folder, after every hash fits and every probe is answered as it was when the bundle was built.

    Of a working folder, or one of bundles, the one that is current there. Raises ArtifactError where it is missing,
    damaged, of another format, or answers differently here.
    """
    source = Path(path)
    path = bundle_folder(source)
    try:
        manifest = read_artifact(path, KIND)
    except ArtifactError as error:
        if path.exists():
            raise
        hint = "`falconet run RECIPE --out work` makes `work/bundle`"
        raise ArtifactError(f"no bundle at `{path}`", hint=hint) from error
    bundle = _open(path, manifest)
    probes = manifest.extra.get("probes", [])
    onnx_difference(path, bundle.engine, [probe["request"] for probe in probes])
    for probe in probes:
        check_probe(path, probe, answer_probe(bundle.engine, probe["request"]))
    return replace(bundle, source=source)


def build_bundle(
    out: str | Path,
    *,
    workflow: str | Path,
    retriever: str | Path | Mapping[str, str | Path],
    ranker: str | Path | None,
    items: str | Path,
    users: str | Path,
    config: ServingConfig,
    data: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    extra: Mapping[str, Any] | None = None,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    overwrite: bool = False,
) -> Bundle:
    """Write a bundle whole or not at all, and give it loaded.

    `workflow`: a saved FittedWorkflow; targets and histories are cut off, the people's own are in `users`.
    `retriever`, `ranker`: models/store.py folders, of several retrievers by name. `items`, `users`: features/items and
    features/users (docs/contracts.md). `data`: {"rows", "from", "to"} of the training data. `weights`: of several
    retrievers, how much the places of each count where their lists become one, 1 where nothing is said. `extra`: more
    keys for the manifest, such as the step's. `about`: what the page tells of the making, by file (serve/about.py).

    Raises ArtifactError where `out` is there already, unless `overwrite`, and where a folder is missing or is something
    else; SchemaError where the tables lack a column that the models read; ConfigError for weights of other names, and
    for an ONNX model of a ranker that is not there or cannot be one.
    """
    retrievers = dict(retriever) if isinstance(retriever, Mapping) else {RETRIEVER: retriever}
    if unknown := sorted(set(weights or ()) - set(retrievers)):
        raise ConfigError(f"`weights` names no retriever `{unknown[0]}`", hint=suggest(unknown[0], retrievers))
    served = tuple(ServedRetriever(name=name, weight=(weights or {}).get(name, 1.0)) for name in retrievers)
    config = replace(config, retrievers=served)
    second = None if ranker is None else load_model(ranker)
    if second is None and config.ranker == "onnx":
        raise ConfigError('`ranker = "onnx"`, but the bundle has no ranker', hint="leave it out")
    parents = {"workflow": read_manifest(workflow, "workflow").sha256}
    with write_artifact(out, KIND, parents=parents, extra=extra, overwrite=overwrite) as draft:
        to = draft.path
        _serving_part(FittedWorkflow.load(workflow)).save(to / "workflow")
        for name, folder in retrievers.items():
            shutil.copytree(folder, to / RETRIEVERS / name)
        if ranker is not None:
            shutil.copytree(ranker, to / "ranker")
        if second is not None and config.ranker == "onnx":
            write_ranker(second, to / ONNX_RANKER)
        _copy_table(items, to / "items.parquet")
        _copy_table(users, to / "users.parquet", without=_NOT_SERVED)
        catalogue = Catalogue(to / "items.parquet", config.item)
        _write_popular(catalogue, config.item, to / "popular.parquet")
        draft.unlisted += write_about(to, about or {})
        (to / INDEXES).mkdir()
        for name in retrievers:
            model, ann = _retriever(to / RETRIEVERS / name), config.index == "ann"
            index = index_of(model, catalogue.features, catalogue.codes, ann=ann)
            index.save(to / INDEXES / f"{name}.safetensors")
        _write_config(config, to)
        engine = _open(to, None).engine
        requests = probe_requests(engine)
        first = engine.sources.first
        has_vectors = isinstance(first.index, ExactIndex)
        if has_vectors and _has_bias(engine):
            _write_config(replace(config, bias=True), to)
        draft.extra |= {
            "models": {
                "retrievers": {s.name: type(s.retriever).__name__ for s in engine.sources.sources},
                "ranker": second and type(second).__name__,
            },
            "dim": first.index.dim if isinstance(first.index, ExactIndex) else None,
            "items": len(catalogue),
            "ann_recall": _ann_recall(engine),
            "onnx_ranker": onnx_difference(to, engine, requests),
            "data": dict(data),
            "probes": [{"request": request, **answer_probe(engine, request)} for request in requests],
        }
    return load_bundle(out)


def _open(path: Path, manifest: Manifest | None) -> Bundle:
    """The parts of a bundle, put together. Without a manifest: of one that is being built."""
    config = _read_config(path / "serving.json")
    ranker = load_model(path / "ranker") if (path / "ranker").is_dir() else None
    if ranker is not None:
        settle(ranker)
    runs = OnnxRanker(path / ONNX_RANKER) if config.ranker == "onnx" else ranker
    catalogue = Catalogue(path / "items.parquet", config.item)
    models = {one.name: _retriever(path / RETRIEVERS / one.name) for one in config.retrievers}
    for model in models.values():
        read_each(model)
    sources = _sources(path, config, models, catalogue)
    schema = _request_schema([*models.values(), *([] if ranker is None else [ranker])])
    people = People(path / "users.parquet", schema.names)
    workflow = FittedWorkflow.load(path / "workflow")
    features = RequestFeatures(
        schema=schema,
        people=people,
        workflow=workflow,
        user=config.user,
        item=catalogue.schema[config.item],
        length=config.history,
        reads_all=any(isinstance(model, ClosedForm) and model.reads_history for model in models.values()),
    )
    rows = None if ranker is None else _ranker_rows(ranker, schema, catalogue, sources.names)
    popular = pq.read_table(path / "popular.parquet").column(config.item).to_pylist()
    first = sources.first
    near = nearness_of(models[first.name], first.index, catalogue.codes, popular, bias=config.bias)
    engine = Engine(catalogue, people, features, sources, runs, rows, popular, config.candidates, near)
    return Bundle(path, manifest or Manifest(KIND, {}, {}, {}, ""), config, engine, workflow, read_about(path))


def _sources(path: Path, config: ServingConfig, models: Mapping[str, Retriever], catalogue: Catalogue) -> Sources:
    """The retrievers, each with its index."""
    sources = []
    for one in config.retrievers:
        model, file = models[one.name], path / INDEXES / f"{one.name}.safetensors"
        index = _index(file, model, config)
        if not torch.equal(index.codes, catalogue.codes):
            raise ArtifactError(f"`{file}` has other items than items.parquet")
        sources.append(Source(one.name, model, index, one.weight))
    return Sources(sources)


def _index(file: Path, model: Retriever, config: ServingConfig) -> ScoreIndex | ExactIndex:
    if isinstance(model, ItemScorer):
        return ScoreIndex.load(file)
    return (AnnIndex if config.index == "ann" else ExactIndex).load(file)


def _ann_recall(engine: Engine) -> dict[str, float] | None:
    """For each approximate index, the share of the exact candidates that it finds for people known to training."""
    features, people = engine.features, range(min(len(engine.people), _ASKED))
    found = {}
    for source in engine.sources.sources:
        if people and isinstance(source.index, AnnIndex):
            asked = (features.batch(p, None, features.history(p), {}, engine.people.seen(p).tolist()) for p in people)
            with torch.inference_mode():
                queries = torch.cat([source.retriever.user(one) for one in asked])
            found[source.name] = round(source.index.recall(queries, engine.candidates), 4)
    for name, recall in found.items():
        note(f"the approximate index of `{name}` finds {recall:.1%} of the {engine.candidates} exact candidates")
    return found or None


def _ranker_rows(ranker: Model, schema: Schema, catalogue: Catalogue, names: tuple[str, ...]) -> CandidateRows:
    """The maker of the ranker's rows: with ids and histories where it reads them."""
    known = schema + catalogue.features_schema
    reads = set((ranker.columns if isinstance(ranker, Ranker) else ranker.schema.without_tags(Tag.TARGET)).names)
    ids = {c.name for c in known.select(Tag.ID)}
    history = any(Tag.SEQUENCE in c.tags and c.name in reads for c in known)
    return CandidateRows(known, catalogue.features, sources=names, ids=bool(ids & reads), history=history)


def _retriever(folder: Path) -> Retriever:
    model = load_model(folder)
    if not isinstance(model, Retriever):
        raise ArtifactError(
            f"`{folder}` is a {type(model).__name__}, which has no vectors to search",
            hint="a retriever such as TwoTower is needed",
        )
    return model


def _request_schema(models: Sequence[Model]) -> Schema:
    """The columns that a request must bring for all models."""
    schema = Schema(())
    for model in models:
        schema += user_side(model.schema).without(schema.names)
    return schema


def _serving_part(fitted: FittedWorkflow) -> FittedWorkflow:
    """The workflow without targets (nobody knows them yet) and histories (users.parquet and the store have them)."""
    kept = fitted.schema.without_tags(Tag.TARGET, Tag.WEIGHT, Tag.SEQUENCE)
    return fitted.prune(outputs=kept.names)


def _copy_table(source: str | Path, to: Path, without: tuple[str, ...] = ()) -> None:
    table, schema = read_table(source)
    schema = schema.without(without)
    footer = {FOOTER_KEY: schema.to_json().encode()}
    pq.write_table(table.select(schema.names).replace_schema_metadata(footer), to, compression="lz4")


def _write_popular(catalogue: Catalogue, item: str, to: Path) -> None:
    """The catalogue's codes from the most to the least popular, ties by ascending code."""
    order = sorted(range(len(catalogue)), key=lambda row: (-catalogue.counts[row], row))
    codes = catalogue.codes[torch.tensor(order, dtype=torch.int64)].tolist()
    counts = [catalogue.counts[row] for row in order]
    pq.write_table(pa.table({item: pa.array(codes, pa.int64()), "count": pa.array(counts, pa.int64())}), to)


def _write_config(config: ServingConfig, to: Path) -> None:
    (to / "serving.json").write_text(json.dumps(to_plain(config), indent=1, sort_keys=True))


def _read_config(path: Path) -> ServingConfig:
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"`{path}` cannot be read: {error}") from error
    if isinstance(plain, dict) and plain.get("format") != FORMAT:
        raise ArtifactError(
            f"`{path}` has format {plain.get('format')}, this version reads {FORMAT}",
            hint="`falconet run RECIPE` builds a bundle that it reads",
        )
    try:
        return from_plain(ServingConfig, plain, where=str(path))
    except ConfigError as error:
        raise ArtifactError(str(error)) from error


def _has_bias(engine: Engine) -> bool:
    """Whether the users' vectors of the first retriever all end in exactly 1."""
    model = engine.sources.first.retriever
    history = engine.popular[:3]
    people: list[int | None] = [None, *range(min(len(engine.people), 8))]
    with torch.inference_mode():
        ends = [model.user(engine.features.batch(p, None, history, {}))[0, -1] for p in people]
    return all(float(end) == 1.0 for end in ends)
