"""The hidden structure of synthetic data: items in groups of like taste, and users who like some of the groups.

Shapes: I items, U users of a block, G groups, K genres, D dimensions of taste.

Chance of user u to take item i:  popularity_i * exp(SHARPNESS * taste_u . centre_group(i)), without replacement.
Rating: a sum of user bias, item bias, taste_u . vector_i and noise, rounded to half stars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from falconet.datasets.titles import GENRES

DIMENSIONS = 16
SHARPNESS = 6.0  # how strongly taste decides what is watched
ZIPF = 1.1
MAX_GENRES = 4

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything about the items, and the groups they fall into. Items are sorted by group."""

    group: Ints  # (I,) ascending
    log_popularity: Floats  # (I,)
    vector: Floats  # (I, D)
    bias: Floats  # (I,) in stars
    centre: Floats  # (G, D) unit vectors
    genre: NDArray[np.bool_]  # (G, K) which genres are typical of a group

    @property
    def items(self) -> int:
        return len(self.group)


def build_world(items: int, random: np.random.Generator) -> World:
    """Draw the groups, then the items' places in them, their popularity and their quality."""
    groups = int(np.clip(items // 40, 4, 256))
    genre_KD = _unit(random.standard_normal((len(GENRES), DIMENSIONS)))
    genre_GK = np.zeros((groups, len(GENRES)), dtype=bool)
    for group in range(groups):
        # The first genre goes round, so that each is somebody's; one or two more come by chance.
        more = random.choice(len(GENRES), size=random.integers(1, 3), replace=False)
        genre_GK[group, [group % len(GENRES), *more]] = True
    mean_GD = np.einsum("gk,kd->gd", genre_GK / genre_GK.sum(axis=1, keepdims=True), genre_KD)
    centre_GD = _unit(_unit(mean_GD) + 0.8 * _unit(random.standard_normal((groups, DIMENSIONS))))
    group_I = np.sort(random.integers(groups, size=items))
    rank_I = random.permutation(items) + 1
    log_popularity_I = -ZIPF * np.log(rank_I + 0.01 * items)
    vector_ID = centre_GD[group_I] + 0.6 * _unit(random.standard_normal((items, DIMENSIONS)))
    known_I = (log_popularity_I - log_popularity_I.mean()) / (log_popularity_I.std() + 1e-9)
    bias_I = 0.35 * random.standard_normal(items) + 0.15 * known_I
    return World(
        group=group_I,
        log_popularity=log_popularity_I,
        vector=vector_ID,
        bias=bias_I,
        centre=centre_GD,
        genre=genre_GK,
    )


def draw_genres(world: World, random: np.random.Generator) -> list[list[int]]:
    """One to four genres per item: most of its group's, now and then a stray one."""
    keep_IK = world.genre[world.group] & (random.random((world.items, len(GENRES))) < 0.85)
    first_I = random.random((world.items, len(GENRES)))
    first_I[~world.genre[world.group]] = -1.0
    keep_IK[np.arange(world.items), first_I.argmax(axis=1)] = True  # at least one of the group's
    stray_I = np.flatnonzero(random.random(world.items) < 0.15)
    keep_IK[stray_I, random.integers(len(GENRES), size=len(stray_I))] = True
    return [np.flatnonzero(row)[:MAX_GENRES].tolist() for row in keep_IK]


def draw_tastes(world: World, users: int, random: np.random.Generator) -> Floats:
    """Unit vectors (users, D): a mix of the centres of one to four favourite groups, and something of one's own."""
    groups = len(world.centre)
    favourite_UF = random.integers(groups, size=(users, 4))
    weight_UF = random.random((users, 4)) ** 3
    weight_UF[:, 0] = 1.0
    taste_UD = np.einsum("uf,ufd->ud", weight_UF, world.centre[favourite_UF])
    return _unit(_unit(taste_UD) + 0.3 * _unit(random.standard_normal((users, DIMENSIONS))))


def _unit(x: Floats) -> Floats:
    """The same vectors at length 1."""
    return np.asarray(x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True)))
