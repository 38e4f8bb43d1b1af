"""report.json: written with equal bytes for equal figures, shown as a table and as a page."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from falconet.errors import ArtifactError, ConfigError, suggest
from falconet.evaluation.evaluate import FORMAT
from falconet.evaluation.page import page_text
from falconet.io.artifact import write_file

WIDTH = 120  # columns of the table where the terminal does not say


def write_report(report: Mapping[str, Any], path: str | Path) -> None:
    """Write a report whole or not at all, after its page: the same name with `.html`. Makes the folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_file(Path(path).with_suffix(".html"), page_text(report).encode())
    write_file(path, (json.dumps(report, indent=1) + "\n").encode())


def read_report(path: str | Path) -> dict[str, Any]:
    """The report in a file. Raises ArtifactError where it is missing, damaged or of another format."""
    path = Path(path)
    try:
        report = json.loads(path.read_bytes())
        version = report["format"]
    except FileNotFoundError as error:
        raise ArtifactError(f"no report at `{path}`", hint="`falconet evaluate` writes it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"`{path}` is not a report: {error!r}") from error
    if version != FORMAT:
        raise ArtifactError(f"`{path}` has report format {version}, this version reads {FORMAT}")
    return dict(report)


def table_text(report: Mapping[str, Any], metrics: Sequence[str] = ("recall@10", "ndcg@10")) -> str:
    """The report as a table for people: one row per model, its interval in brackets; then the ranker's figures.

    Published figures of the same protocol follow the models'. Raises ConfigError for a metric the report does not have.
    """
    table = Table(title=None)
    table.add_column("model")
    for name in metrics:
        table.add_column(name, justify="right")
    for model, figures in report["models"].items():
        ranking = figures["ranking"]
        for name in metrics:
            if name not in ranking:
                raise ConfigError(f"the report has no metric `{name}`", hint=suggest(name, ranking))
        table.add_row(model, *(_figure(ranking[name]) for name in metrics))
    published = report.get("published", {"models": {}})
    for place, (model, printed) in enumerate(published["models"].items()):
        if not place:
            table.add_section()
        table.add_row(f"{model} *", *(_number(printed.get(name)) for name in metrics))
    data, protocol = report["data"], report["protocol"]
    untrained = protocol.get("items") == "untrained"
    which = "those that training has no row of among" if untrained else "all"
    lines = [
        _draw(table),
        f"{protocol['users']:,} users have something in the test, {data['users']:,} are known to training; "
        f"{which} {data['items']:,} items compete, seen ones are left out; in brackets the 95 % interval over users",
    ]
    if "published" in report:
        lines.append(f"* published, for {published['data']} ({published['source']})")
    lines += [f"{model} is left out: {why}" for model, why in report["left_out"].items()]
    if "ranker" in report:
        ranker = report["ranker"]
        lines.append(
            f"ranker, taken or not: AUC {_number(ranker['auc'])}, within users {_number(ranker['gauc'])}, "
            f"log loss {_number(ranker['log_loss'])}; users' and items' luck alone: AUC {_number(ranker['base_auc'])}"
        )
    return "\n".join(lines)


def _figure(figure: Mapping[str, float | None]) -> str:
    return f"{_number(figure['value'])} ({_number(figure['low'])} to {_number(figure['high'])})"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _draw(table: Table) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()
