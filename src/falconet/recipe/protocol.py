"""Ways to split and to measure under the names they have in the literature; docs/evaluation.md has the sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from falconet.errors import ConfigError, suggest

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Published:
    """Figures that others printed for a protocol, and the data that they hold for."""

    data: str
    source: str
    models: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A recipe's settings that make its figures comparable: those that are `fixed`, and what others `start` from.

    `models`: what is compared where a recipe names nothing, the entries of `[[compare]]`.
    """

    about: str
    fixed: Tables
    start: Tables = field(default_factory=dict)
    published: Published | None = None
    models: tuple[Mapping[str, Any], ...] = ()


_OTHERS = {"prepare": {"history": "others", "max_items": 1000}}  # what splits without regard to time need
_EARLIER = {"prepare": {"history": "earlier", "max_items": 1000}}

_NEIGHBOURS = (
    {"model": "ItemKNN"},
    {"name": "SAR", "model": "ItemKNN", "config": {"similarity": "jaccard", "neighbours": None}},
)
_OF_STRANGERS = (*_NEIGHBOURS, {"model": "IALS"})  # a model of known users alone could not say anything
_BPR = {
    "name": "BPR",
    "model": "MF",
    "batch_size": 1024,
    "config": {"objective": {"loss": "bpr", "negatives": "uniform", "per_row": True, "samples": 1}},
    "train": {
        "epochs": 30,
        "table_learning_rate": 0.01,
        "table_weight_decay": 1.0,
        "schedule": "linear",
        "precision": "float32",
    },
}
_OF_FEATURES = {
    "model": "TwoTower",
    "batch_size": 512,
    "config": {"unknown_items": 0.5},
    "train": {
        "epochs": 8,
        "optimizer": "adamw",
        "learning_rate": 0.003,
        "schedule": "linear",
        "precision": "float32",
    },
}


def _rows(names: str, rows: Mapping[str, tuple[float, ...]]) -> dict[str, dict[str, float]]:
    return {model: dict(zip(names.split(), figures, strict=True)) for model, figures in rows.items()}


PROTOCOLS: Mapping[str, Protocol] = {
    "user-ratio": Protocol(
        about="a random fifth of each user's rows is the test",
        fixed={"split": {"kind": "random", "ratio": 0.8}},
        start=_OTHERS,
        models=(*_NEIGHBOURS, _BPR),
    ),
    "leave-last-out": Protocol(
        about="each user's last row is the test, ties in time in file order",
        fixed={"split": {"kind": "leave_last", "last": 1}},
        start=_EARLIER,
        models=(*_NEIGHBOURS, _BPR),
    ),
    "global-time": Protocol(
        about="everything from the 0.8 quantile of all times on is the test",
        fixed={"split": {"kind": "time", "ratio": 0.8}},
        start=_EARLIER,
        models=(*_NEIGHBOURS, _BPR),
    ),
    "ms-stratified": Protocol(
        about="a random quarter of each item's rows is the test, users in both parts, every test row relevant",
        fixed={
            "split": {"kind": "stratified", "ratio": 0.75},
            "evaluate": {"k": 10, "map_by": "all", "recall_by": "all"},
        },
        start={**_OTHERS, "evaluate": {"metrics": ["map@10", "ndcg@10", "precision@10", "recall@10"]}},
        models=(*_NEIGHBOURS, _BPR),
        published=Published(
            data="MovieLens-100k",
            source="Microsoft Recommenders, README, benchmark of algorithms",
            models=_rows(
                "map@10 ndcg@10 precision@10 recall@10",
                {
                    "BiVAE": (0.146, 0.475, 0.412, 0.219),
                    "BPR": (0.132, 0.442, 0.388, 0.213),
                    "LightGCN": (0.089, 0.420, 0.380, 0.144),
                    "NCF": (0.108, 0.396, 0.347, 0.181),
                    "SAR": (0.111, 0.382, 0.331, 0.176),
                    "SVD": (0.013, 0.096, 0.091, 0.033),
                    "ALS": (0.005, 0.044, 0.048, 0.018),
                },
            ),
        ),
    ),
    "cold-users": Protocol(
        about="a tenth of the users is held out; their first five rows are known, all later ones are the test",
        fixed={"split": {"kind": "users", "known": 5}},
        start=_EARLIER,
        models=_OF_STRANGERS,
    ),
    "cold-items": Protocol(
        about="a tenth of the items is held out; the test is who took which of them, in lists of untrained items alone",
        fixed={
            "split": {"kind": "items"},
            "prepare": {"untrained_items": True},
            "evaluate": {"items": "untrained"},
        },
        start=_OTHERS,
        models=(_OF_FEATURES,),
    ),
    "vae": Protocol(
        about="ratings from 4, users with five or more; whole users are held out, a fifth of their rows is the test",
        fixed={
            "split": {"kind": "users", "ratio": 0.8, "min_rating": 4.0, "min_items": 5},
            "evaluate": {"k": 100, "recall_by": "min_k"},
        },
        start={**_OTHERS, "evaluate": {"metrics": ["ndcg@100", "recall@20", "recall@50"]}},
        models=_OF_STRANGERS,
        published=Published(
            data="MovieLens-20M",
            source="Steck, WWW 2019; Liang et al., WWW 2018; Shenbin et al., WSDM 2020",
            models=_rows("ndcg@100", {"EASE": (0.420,), "Mult-VAE": (0.426,), "RecVAE": (0.442,)}),
        ),
    ),
}


def protocol_of(name: str) -> Protocol:
    """The protocol of that name. Raises ConfigError for a name that none has."""
    if name not in PROTOCOLS:
        raise ConfigError(f"there is no protocol `{name}`", hint=suggest(name, PROTOCOLS))
    return PROTOCOLS[name]


def with_protocol(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's plain values with those of its `protocol`, where it has one.

    Raises ConfigError for an unknown protocol, and for a setting that contradicts it.
    """
    name = plain.get("protocol") or None
    if not isinstance(name, str):
        return dict(plain)
    protocol = protocol_of(name)
    made = {"compare": list(protocol.models), **plain}
    for table in dict.fromkeys((*protocol.fixed, *protocol.start)):
        given = plain.get(table, {})
        if not isinstance(given, Mapping):
            continue  # reading the recipe says what is wrong with it
        for key, value in protocol.fixed.get(table, {}).items():
            if given.get(key, value) != value:
                raise ConfigError(
                    f"`{table}.{key}` is {given[key]!r}, the protocol `{name}` says {value!r}",
                    hint="leave one of the two out",
                )
        made[table] = {**protocol.start.get(table, {}), **given, **protocol.fixed.get(table, {})}
    return made
