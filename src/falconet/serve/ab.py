"""What came of A/B tests: how many people of each variant responded, whether that differs, and whether to believe it.

A person counts once, for people are what variants are dealt to: lists of one person are not independent of each other.
An event counts for the list whose `recommendation_id` it carries, where it is that person's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from falconet.serve.events import HIDE, Id
from falconet.serve.scenarios import Scenario, Scenarios
from falconet.serve.store import Store

FORMAT = 1  # of the report
Z = 1.959963984540054  # 95 % of a normal distribution lie within ± Z
SUSPICIOUS = 0.001  # below this p the split of people is not what the weights say
_Person = tuple[str, Id]


@dataclass(frozen=True)
class Figure:
    """A share, or a difference of two, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Figure):
    """Of a variant to the first. `p`: two-sided, times the number of variants that are compared (Bonferroni)."""

    p: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of one variant. `responding`: the share of people with an event that counts; None where it had nobody."""

    people: int
    responded: int
    lists: int
    events: int
    responding: Figure | None
    to_first: Difference | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Of one scenario. `in_several`: people who had more than one variant, who are left out, as are lists of variants
    that the scenario does not name (`unknown`). `split_p`: how likely so uneven a split of people is by chance.
    """

    variants: dict[str, Result]
    in_several: int
    unknown: int
    split_p: float

    @property
    def split_fits(self) -> bool:
        """Whether people are split as the weights say. Where not, something loses people, and no figure is to be
        believed.
        """
        return self.split_p >= SUSPICIOUS


def report(store: Store, scenarios: Scenarios, types: Collection[str] | None = None) -> dict[str, Report]:
    """What came of every scenario; `types` are those of the events that count, None: all but `hide`.

    Memory grows with the lists that were shown, not with the events.
    """
    tallies = {scenario.name: _Tally(scenario) for scenario in scenarios.scenario}
    lists: dict[str, tuple[_Tally, _Person]] = {}
    for _, shown in store.impressions():
        tally = tallies.get(shown.scenario or "")
        if tally is None or shown.who is None or shown.variant is None:
            continue
        person: _Person = (shown.who.kind, shown.who.id)
        if tally.shown(person, shown.variant):
            lists[shown.recommendation_id] = (tally, person)
    for batch in store.export():
        for event in batch.to_pylist():
            found = lists.get(event["recommendation_id"] or "")
            if found is None or (event["type"] == HIDE if types is None else event["type"] not in types):
                continue
            tally, person = found
            user, session = event["user_id"], event["session_id"]
            kind, whose = ("session", session) if user is None else ("user", user)
            if (person[0], str(person[1])) == (kind, str(whose)):  # an export may have numbers as texts
                tally.events[person] += 1
    return {name: tally.report() for name, tally in tallies.items()}


def to_plain(reports: dict[str, Report]) -> dict[str, Any]:
    """The reports as JSON has them; contracts.md describes it."""

    def plain(figure: Figure | None) -> dict[str, float] | None:
        return None if figure is None else {name: round(value, 6) for name, value in vars(figure).items()}

    return {
        "format": FORMAT,
        "scenarios": {
            name: {
                "variants": {
                    variant: {
                        **{key: getattr(result, key) for key in ("people", "responded", "lists", "events")},
                        "responding": plain(result.responding),
                        "to_first": plain(result.to_first),
                    }
                    for variant, result in one.variants.items()
                },
                "in_several": one.in_several,
                "unknown": one.unknown,
                "split": {"p": round(one.split_p, 6), "fits": one.split_fits},
            }
            for name, one in reports.items()
        },
    }


@dataclass
class _Tally:
    """Counts of one scenario."""

    scenario: Scenario
    variant_of: dict[_Person, str | None] = field(default_factory=dict)  # None: more than one
    lists: Counter[_Person] = field(default_factory=Counter)
    events: Counter[_Person] = field(default_factory=Counter)
    unknown: int = 0

    def shown(self, person: _Person, variant: str) -> bool:
        """Count a list; whether its variant is one of the scenario's."""
        if all(variant != known.name for known in self.scenario.variants):
            self.unknown += 1
            return False
        if self.variant_of.setdefault(person, variant) != variant:
            self.variant_of[person] = None
        self.lists[person] += 1
        return True

    def report(self) -> Report:
        people: dict[str, list[_Person]] = {variant.name: [] for variant in self.scenario.variants}
        for person, variant in self.variant_of.items():
            if variant is not None:
                people[variant].append(person)
        counts = {name: (sum(self.events[p] > 0 for p in have), len(have)) for name, have in people.items()}
        first = next(iter(counts.values()))
        results = {
            name: Result(
                people=n,
                responded=hits,
                lists=sum(self.lists[person] for person in people[name]),
                events=sum(self.events[person] for person in people[name]),
                responding=wilson(hits, n) if n else None,
                to_first=difference((hits, n), first, len(counts) - 1) if i and n and first[1] else None,
            )
            for i, (name, (hits, n)) in enumerate(counts.items())
        }
        weights = [variant.weight for variant in self.scenario.variants]
        return Report(
            variants=results,
            in_several=sum(variant is None for variant in self.variant_of.values()),
            unknown=self.unknown,
            split_p=split_p([n for _, n in counts.values()], weights),
        )


def wilson(hits: int, n: int) -> Figure:
    """The share of `hits` in `n` with Wilson's score interval (JASA 1927), which holds for few and for no hits too."""
    share, bound = hits / n, Z * Z / n
    middle = (share + bound / 2) / (1 + bound)
    width = Z * math.sqrt(share * (1 - share) / n + bound / (4 * n)) / (1 + bound)
    return Figure(share, max(0.0, min(share, middle - width)), min(1.0, max(share, middle + width)))


def difference(one: tuple[int, int], first: tuple[int, int], comparisons: int = 1) -> Difference:
    """The share of one (hits, n) minus that of the first: Newcombe's interval (Statistics in Medicine 1998, method 10),
    p of the two-sided z test with pooled variance.
    """
    a, b = wilson(*one), wilson(*first)
    apart = a.value - b.value
    low = apart - math.hypot(a.value - a.low, b.high - b.value)
    high = apart + math.hypot(a.high - a.value, b.value - b.low)
    pooled = (one[0] + first[0]) / (one[1] + first[1])
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / one[1] + 1 / first[1]))
    p = math.erfc(abs(apart) / deviation / math.sqrt(2)) if deviation else 1.0
    return Difference(apart, low, high, min(1.0, p * comparisons))


def split_p(people: list[int], weights: list[float]) -> float:
    """Pearson's chi-squared test of the numbers of people against the weights; 1 of nobody."""
    total, whole = sum(people), sum(weights)
    if not total:
        return 1.0
    expected = [total * weight / whole for weight in weights]
    chi = sum((n - e) ** 2 / e for n, e in zip(people, expected, strict=True))
    half = torch.tensor([(len(people) - 1) / 2, chi / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
