"""report.html: what report.json says, for people. One file that needs nothing else: no script, no request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from falconet.evaluation.charts import SHADES, calibration, lines, scatter

Report = Mapping[str, Any]

BASELINES = ("Popular", "EASE")
CHANCE = 0.05  # a difference that luck alone makes more often than this is not called one
TITLE = 120  # letters of a title that are shown; report.json has all of them
LISTED = {"coverage": "coverage", "novelty": "novelty", "diversity": "diversity", "gini": "Gini"}


def page_text(report: Report) -> str:
    """The page of a report, as HTML. Every name and title in it is text, whatever it looks like."""
    sections = (_standing, _table, _lengths, _popularity, _people, _items, _ranker, _published, _examples, _facts)
    k = report["protocol"]["k"]
    body = "".join(section(report) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>falconet: recommendations compared</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n"
        f"<header><h1>Who recommends what people take?</h1>{_lead(report, k)}{_verdict(report, k)}</header>\n"
        f"<main>{body}</main>\n<footer>{_reading()}</footer>\n</body>\n</html>\n"
    )


def _style() -> str:
    return files("falconet.evaluation").joinpath("page.css").read_text(encoding="utf-8")


def _lead(report: Report, k: int) -> str:
    data, protocol = report["data"], report["protocol"]
    name = f"Protocol {escape(protocol['name'])}. " if protocol["name"] else ""
    return (
        f'<p class="lead">{name}Each of {protocol["users"]:,} users was shown {k} of {data["items"]:,} items, none of '
        f"which they had met in training, and counts by what the test holds of them: {data['test']:,} rows, beside "
        f"{data['train']:,} to learn from.</p>"
    )


def _verdict(report: Report, k: int) -> str:
    """The best model, and by how much it leads."""
    models, best = report["models"], report["best"]
    metric = f"ndcg@{k}"
    if len(models) == 1:
        return ""
    value = {name: _value(model["ranking"][metric]) for name, model in models.items()}
    second = max((name for name in models if name != best), key=lambda name: value[name])
    apart = models[second]["to_best"][metric]
    lead = "which is more than luck" if _told_apart(apart) else "which luck alone may be"
    more = f", {value[best] / value[second] - 1:.1%} more than {escape(second)}, {lead}" if value[second] else ""
    return f'<p class="verdict"><strong>{escape(best)}</strong> finds most: nDCG@{k} {_number(value[best])}{more}.</p>'


def _standing(report: Report) -> str:
    metric = f"ndcg@{report['protocol']['k']}"
    found = {name: model["ranking"][metric] for name, model in report["models"].items()}
    top = max([figure["high"] or 0.0 for figure in found.values()] + [1e-9])
    rows = "".join(
        f'<div class="row{_kind(name, report)}"><span>{escape(name)}</span><span class="track">'
        f'<span class="fill" style="--at:{_share(figure["value"], top)}"></span><span class="whisker" '
        f'style="--from:{_share(figure["low"], top)};--to:{_share(figure["high"], top)}"></span></span>'
        f"<span>{_number(figure['value'])}</span></div>"
        for name, figure in sorted(found.items(), key=lambda one: -_value(one[1]))
    )
    return _section(
        "Standing",
        f"nDCG@{report['protocol']['k']}: 1 where everything that somebody took stands at the top of the list. "
        "The lines are 95 % intervals over the users.",
        f'<div class="card bars">{rows}</div>',
    )


def _table(report: Report) -> str:
    k, models = report["protocol"]["k"], report["models"]
    ranking = [f"{name}@{k}" for name in ("ndcg", "recall", "mrr", "hit_rate", "map")]
    lists = [name for name in LISTED if any(f"{name}@{k}" in model["lists"] for model in models.values())]
    head = [*(name.replace("_", " ") for name in ranking), *(LISTED[name] for name in lists), "nDCG to the best"]
    rows = []
    for name, model in models.items():
        cells = [f"<td>{_figure(model['ranking'][metric])}</td>" for metric in ranking]
        cells += [f"<td>{_number(model['lists'].get(f'{one}@{k}'))}</td>" for one in lists]
        cells.append(f"<td>{_difference(model['to_best'][f'ndcg@{k}']) if 'to_best' in model else 'best'}</td>")
        rows.append(f'<tr class="{_kind(name, report).strip()}"><td>{escape(name)}</td>{"".join(cells)}</tr>')
    left_out = "".join(
        f"<p>{escape(name)} is left out: {escape(str(why))}</p>" for name, why in report.get("left_out", {}).items()
    )
    return _section("Figures", "", _wide(["model", *head], rows) + left_out)


def _lengths(report: Report) -> str:
    models = report["models"]
    ks = sorted({int(metric.partition("@")[2]) for model in models.values() for metric in model["ranking"]})
    if len(ks) < 2:
        return ""
    charts = ""
    for metric in ("ndcg", "recall"):
        found = {name: [(k, _value(model["ranking"][f"{metric}@{k}"])) for k in ks] for name, model in models.items()}
        charts += f"<figure>{lines(found, 'length of the list', metric)}</figure>"
    return _section(
        "Shorter and longer lists", "", f'<div class="card"><div class="pair">{charts}</div>{_legend(models)}</div>'
    )


def _popularity(report: Report) -> str:
    k, models = report["protocol"]["k"], report["models"]

    def at(metric: str) -> dict[str, tuple[float, float]]:
        return {
            name: (float(model["lists"][f"{metric}@{k}"] or 0.0), _value(model["ranking"][f"ndcg@{k}"]))
            for name, model in models.items()
        }

    charts = (
        f"<figure>{scatter(at('coverage'), f'share of the items that any list of {k} shows', f'nDCG@{k}')}</figure>"
        f"<figure>{scatter(at('novelty'), 'novelty: bits of surprise of an item shown', f'nDCG@{k}')}</figure>"
    )
    return _section(
        "Right, and not always the same",
        "A model that shows everybody the most popular items stands at the left of both. Further right is more of the "
        "catalogue, and less of what everybody knows.",
        f'<div class="card pair">{charts}</div>',
    )


def _people(report: Report) -> str:
    segments = {n: s for n, s in report["segments"]["users"].items() if s["users"]}
    told = {name: f"{_seen(one['seen'])}<br><small>{one['users']:,} users</small>" for name, one in segments.items()}
    metric = f"ndcg@{report['protocol']['k']}"
    return _heat(
        report,
        "For whom",
        f"{metric.replace('ndcg', 'nDCG')}, by how much people had taken in training.",
        list(told.values()),
        lambda model: [model["users"][name][metric] for name in segments],
    )


def _seen(seen: Sequence[int] | None) -> str:
    if seen is None or not seen[1]:
        return "nothing known"
    return f"{seen[0]:,} to {seen[1]:,} items" if seen[0] < seen[1] else f"{seen[0]:,} items"


def _items(report: Report) -> str:
    k = report["protocol"]["k"]
    segments = {name: one for name, one in report["segments"]["items"].items() if one["items"]}
    told = [
        f"{name}<br><small>{one['items']:,} items, {one['train'] or 0:.0%} of training</small>"
        for name, one in segments.items()
    ]
    return _heat(
        report,
        "The known and the rare",
        f"recall@{k} of items that many take (head), some (mid), few (tail) and hardly any (cold, a part of the tail); "
        "small: their share of what the lists show.",
        told,
        lambda model: [model["items"][name][f"recall@{k}"] for name in segments],
        lambda model: [model["items"][name]["share"] for name in segments],
    )


def _heat(
    report: Report,
    title: str,
    told: str,
    head: Sequence[str],
    figures: Callable[[Mapping[str, Any]], list[Mapping[str, Any]]],
    shares: Callable[[Mapping[str, Any]], list[float | None]] | None = None,
) -> str:
    """A table whose cells are the darker the nearer they are to the best of their column."""
    if not head:
        return ""
    found = {name: figures(model) for name, model in report["models"].items()}
    best = [max([_value(row[i]) for row in found.values()] + [1e-9]) for i in range(len(head))]
    rows = []
    for name, row in found.items():
        small = [None] * len(row) if shares is None else shares(report["models"][name])
        cells = "".join(
            f'<td class="heat" style="--heat:{_value(figure) / top:.3f}">{_number(figure["value"])}'
            + ("" if share is None else f" <small>{share:.0%}</small>")
            + "</td>"
            for figure, top, share in zip(row, best, small, strict=True)
        )
        rows.append(f'<tr class="{_kind(name, report).strip()}"><td>{escape(name)}</td>{cells}</tr>')
    return _section(title, told, _wide(["model", *head], rows))


def _ranker(report: Report) -> str:
    ranker = report.get("ranker")
    if ranker is None:
        return ""
    told = [
        ("AUC", ranker["auc"]),
        ("AUC within users", ranker["gauc"]),
        ("AUC of users' and items' luck alone", ranker["base_auc"]),
        ("log loss", ranker["log_loss"]),
        ("normalised entropy", ranker["normalized_entropy"]),
        ("predicted / happened", ranker["calibration"]),
        ("expected calibration error", ranker["ece"]),
    ]
    facts = "".join(f"<dt>{name}</dt><dd>{_number(value)}</dd>" for name, value in told)
    chart = calibration(ranker["curve"], "predicted", "happened") if ranker.get("curve") else ""
    return _section(
        "Does the ranker know what it says?",
        f"On {ranker['rows']:,} candidates of tested users, taken or not. On the dashed line, what it expects is what "
        "happens.",
        f'<div class="card pair"><figure>{chart}</figure><dl class="facts">{facts}</dl></div>',
    )


def _published(report: Report) -> str:
    published = report.get("published")
    if not published:
        return ""
    metrics = list(dict.fromkeys(metric for model in published["models"].values() for metric in model))
    rows = [
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{_number(model.get(metric))}</td>' for metric in metrics)}</tr>"
        for name, model in published["models"].items()
    ]
    told = f"For {published['data']} ({published['source']}). Not measured here."
    return _section("What others published for this protocol", escape(told), _wide(["model", *metrics], rows))


def _examples(report: Report) -> str:
    people = "".join(_person(one, not place) for place, one in enumerate(report.get("examples", ())))
    told = "What somebody took of a list in the test is marked."
    return _section("What it looks like", told, f'<div class="card">{people}</div>') if people else ""


def _person(one: Mapping[str, Any], first: bool) -> str:
    last = ", ".join(map(_title, one["last"]))
    lists = "".join(
        f"<div><h3>{escape(name)}</h3><ol>"
        + "".join(f"<li{' class=taken' if item['taken'] else ''}>{_title(item['title'])}</li>" for item in shown)
        + "</ol></div>"
        for name, shown in one["lists"].items()
    )
    took = f"took {one['seen']:,} in training, {one['test']:,} in the test"
    return (
        f"<details{' open' if first else ''}><summary>User {escape(str(one['user']))} <small>{took}</small></summary>"
        f"<p>Last: {last or 'nothing'}</p>"
        f'<div class="lists">{lists}</div></details>'
    )


def _title(title: object) -> str:
    """An item's title, cut where it is endless, in its own direction of writing."""
    text = str(title)
    return f"<bdi>{escape(text if len(text) <= TITLE else text[: TITLE - 1] + '…')}</bdi>"


def _facts(report: Report) -> str:
    data, protocol = report["data"], report["protocol"]
    untrained = protocol.get("items") == "untrained"
    told = {
        "split": protocol["split"],
        "users": f"{data['users']:,} in training, {protocol['users']:,} tested",
        "items": f"{data['items']:,}, "
        + ("of which those compete that training has no row of" if untrained else "all of which compete"),
        "rows": f"{data['train']:,} in training, {data['test']:,} in the test, {data['unknown']:,} of items that "
        "training does not know and nobody can find",
        "relevant": protocol["relevant"],
        "divided by": f"recall: {_divisor(protocol['recall_by'])}; MAP: {_divisor(protocol['map_by'])}",
        "features": data["sha256"],
    }
    facts = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in told.items())
    return _section("How it was measured", "", f'<dl class="card facts">{facts}</dl>')


def _divisor(name: str) -> str:
    return {"all": "all relevant items", "min_k": "relevant items, at most the list's length"}.get(name, name)


def _reading() -> str:
    return (
        "Intervals and differences are bootstrapped over users, who are the same for all models. “Not told apart”: "
        f"a difference as large comes by luck in more than {CHANCE:.0%} of cases. Figures as JSON: report.json, beside "
        "this page. Made by falconet."
    )


def _section(title: str, told: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{f'<p>{told}</p>' if told else ''}{content}</section>\n"


def _wide(head: Iterable[str], rows: Iterable[str]) -> str:
    """A table that scrolls where the window is narrower."""
    names = "".join(f"<th>{name}</th>" for name in head)
    return f'<div class="card wide" tabindex="0"><table><tr>{names}</tr>{"".join(rows)}</table></div>'


def _legend(names: Iterable[str]) -> str:
    entries = "".join(
        f'<li class="shade-{i % SHADES}"><span>{escape(name)}</span></li>' for i, name in enumerate(names)
    )
    return f'<ul class="legend">{entries}</ul>'


def _kind(name: str, report: Report) -> str:
    if name == report["best"]:
        return " best"
    return " baseline" if name in BASELINES else ""


def _figure(figure: Mapping[str, float | None]) -> str:
    return f"{_number(figure['value'])}<br><small>{_number(figure['low'])} to {_number(figure['high'])}</small>"


def _difference(apart: Mapping[str, float | None]) -> str:
    if apart["value"] is None:
        return "none"
    said = f"p {_p(apart['p'])}" if _told_apart(apart) else "not told apart"
    return f"{apart['value']:+.4f}<br><small>{said}</small>"


def _told_apart(apart: Mapping[str, float | None]) -> bool:
    return apart["p"] is not None and apart["p"] <= CHANCE


def _p(value: float | None) -> str:
    return "none" if value is None else "&lt; .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _value(figure: Mapping[str, float | None]) -> float:
    return figure["value"] or 0.0


def _share(value: float | None, top: float) -> str:
    return f"{100 * (value or 0.0) / top:.2f}%"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"
