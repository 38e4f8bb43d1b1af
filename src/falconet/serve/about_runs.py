"""The trainings behind a bundle, for people to look at: what their folders hold, without weights and without paths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from falconet.errors import ArtifactError

_EPOCHS = 2_000  # of one run: of a longer one the last
_OF_DATA = ("batch_size", "seed", "shuffle", "drop_last", "lanes", "window")  # settings of the loader that are told
_OF_REPORT = ("ndcg", "recall")  # metrics by segment


def runs_summary(folders: Mapping[str, str | Path], report: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """runs.json: the finished runs in `folders` by name, and the figures of `report` where there is one.

    A name may say what a run was for: "scout/two_tower". Raises ArtifactError for a folder that is no run.
    """
    return {
        "runs": [_run(name, Path(folder)) for name, folder in folders.items()],
        "report": None if report is None else _measured(report),
    }


def run_times(folders: Mapping[str, str | Path]) -> dict[str, Any]:
    """What the clock said of the same runs: seconds and rows per second of each epoch, and where they ran."""
    return {name: _times(Path(folder)) for name, folder in folders.items()}


def _run(name: str, folder: Path) -> dict[str, Any]:
    model = _json(folder / "model/config.json")
    run = {"name": name, "model": model["model"], "settings": flat({"model": model["config"]}), "epochs": []}
    if not (folder / "config.json").is_file():  # fitted in closed form
        return {**run, "best": None}
    config = _json(folder / "config.json")
    data = {key: config["data"][key] for key in _OF_DATA if key in config["data"]}
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    best = folder / "best.json"
    return {
        **run,
        "settings": {**run["settings"], **flat({"train": config["train"], "data": data})},
        "epochs": epochs[-_EPOCHS:],
        "best": _json(best)["epoch"] if best.is_file() else None,
    }


def _times(folder: Path) -> dict[str, Any]:
    file = folder / "run.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    start: dict[str, Any] = next((one for one in events if one["event"] == "start"), {})
    epochs = {one["epoch"]: one for one in events if one["event"] == "epoch"}  # the last one, of those begun again
    return {
        "seconds": round(sum(one["seconds"] for one in epochs.values()), 3),
        "rows_per_s": {str(epoch): round(one["rows_per_s"], 1) for epoch, one in epochs.items()},
        **{key: start.get(key) for key in ("device", "precision", "world")},
    }


def _measured(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of the models, without what it says of people."""
    k = report["protocol"]["k"]
    return {
        "k": k,
        "best": report["best"],
        "split": report["protocol"]["split"],
        "users": report["protocol"]["users"],
        "segments": report["segments"]["users"],
        "models": {
            name: {
                "ranking": {metric: one["ranking"][metric] for metric in (f"{kind}@{k}" for kind in _OF_REPORT)},
                "users": one["users"],
            }
            for name, one in report["models"].items()
        },
        "ranker": report.get("ranker"),
    }


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings by dotted names, lists as they are."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{before}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: _without_path(value)}
    return found


def _without_path(value: Any) -> Any:
    """The last part of what may be a path: where a machine keeps its files is nobody's business."""
    return re.split(r"[/\\]", value)[-1] if isinstance(value, str) else value


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"no finished run at `{path.parent}`: {error}") from error
    return content
