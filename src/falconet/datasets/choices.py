"""Which items each user takes: popularity times taste, without replacement, a block of users at a time.

Shapes: U users of a block, I items, G groups, N draws or taken rows.
"""

from __future__ import annotations

import numpy as np

from falconet.datasets.world import SHARPNESS, Floats, Ints, World

_CELLS = 1 << 21  # users x items scored at once, which bounds the memory
_DENSE_ITEMS = 2048  # up to so many items all are scored for everybody
_ROUNDS = 3


class Chooser:
    """Draws items for blocks of users.

    Taking the `n` smallest of Exp(1) / weight_i, and drawing by weight until `n` different items have come, give the
    same distribution (successive sampling). The first costs `items` per user, the second `n`, so the first is for users
    who take much of the catalogue.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        popularity_I = np.exp(world.log_popularity)
        groups = len(world.centre)
        self.start_G = np.searchsorted(world.group, np.arange(groups + 1))
        cumulated_I = np.concatenate([[0.0], np.cumsum(popularity_I)])
        mass_G = np.diff(cumulated_I[self.start_G])
        with np.errstate(divide="ignore"):
            self.log_mass_G = np.log(mass_G)  # -inf for a group without items, which nobody draws
        # Group number + share of the group's mass up to and with the item: ascending over all items.
        inside_I = (cumulated_I[1:] - cumulated_I[self.start_G[world.group]]) / mass_G[world.group]
        self.edge_I = world.group + inside_I

    def choose(self, taste_UD: Floats, count_U: Ints, random: np.random.Generator) -> tuple[Ints, Ints]:
        """(user, item), both (N,), by user and within a user in the order of choice; N = count_U.sum()."""
        logit_UG = SHARPNESS * np.einsum("ud,gd->ug", taste_UD, self.world.centre)
        items = self.world.items
        dense_U = (count_U * 16 > items) | (items <= _DENSE_ITEMS)
        parts: list[tuple[Ints, Ints]] = []
        waiting = np.flatnonzero(~dense_U)
        for turn in range(_ROUNDS):
            if len(waiting):
                user_N, item_N = self._draw(logit_UG, waiting, count_U, 1.5 * 2**turn, random)
                enough_U = np.bincount(user_N, minlength=len(count_U)) == count_U
                parts.append((user_N[enough_U[user_N]], item_N[enough_U[user_N]]))
                waiting = waiting[~enough_U[waiting]]
        left = np.concatenate([np.flatnonzero(dense_U), waiting])
        step = max(1, _CELLS // items)
        parts += [self._score(logit_UG, left[i : i + step], count_U, random) for i in range(0, len(left), step)]
        user_N, item_N = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        order_N = np.argsort(user_N, kind="stable")
        return user_N[order_N], item_N[order_N]

    def _draw(
        self, logit_UG: Floats, users: Ints, count_U: Ints, factor: float, random: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Draw with replacement, a group and then an item of it; keep each user's first `count_U` different ones."""
        weight_UG = self.log_mass_G + logit_UG[users]
        weight_UG = np.exp(weight_UG - weight_UG.max(axis=1, keepdims=True))
        edge_UG = np.cumsum(weight_UG, axis=1)
        edge_UG /= edge_UG[:, -1:]
        edge_UG += np.arange(len(users))[:, None]
        draws_U = (count_U[users] * factor).astype(np.int64) + 8
        place_N = np.repeat(np.arange(len(users)), draws_U)
        groups = logit_UG.shape[1]
        group_N = (
            np.searchsorted(edge_UG.ravel(), place_N + random.random(len(place_N)), side="right") - place_N * groups
        )
        np.clip(group_N, 0, groups - 1, out=group_N)
        item_N = np.searchsorted(self.edge_I, group_N + random.random(len(place_N)), side="right")
        np.clip(item_N, self.start_G[group_N], self.start_G[group_N + 1] - 1, out=item_N)
        # Sorting packed integers is several times faster than sorting by two keys.
        bits = len(place_N).bit_length()
        packed_N = np.sort(((place_N * self.world.items + item_N) << bits) | np.arange(len(place_N)))
        pair_N = packed_N >> bits
        is_first_N = np.concatenate([[True], pair_N[1:] != pair_N[:-1]])
        first_N = np.sort(packed_N[is_first_N] & ((1 << bits) - 1))  # numbers of the draws that brought a new item
        place_N, item_N = place_N[first_N], item_N[first_N]
        taken_N = rank_in_run(place_N, len(users)) < count_U[users][place_N]
        return users[place_N[taken_N]], item_N[taken_N]

    def _score(self, logit_UG: Floats, users: Ints, count_U: Ints, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Give every item an exponential waiting time at the rate of its weight; keep the first `count_U`."""
        rate_UI = self.world.log_popularity + logit_UG[users][:, self.world.group]
        wait_UI = np.log(random.standard_exponential(rate_UI.shape)) - rate_UI
        order_UI = np.argsort(wait_UI, axis=1)
        taken_UI = np.arange(self.world.items) < count_U[users][:, None]
        return np.repeat(users, count_U[users]), order_UI[taken_UI]


def rank_in_run(sorted_N: Ints, kinds: int) -> Ints:
    """For ascending values 0 … kinds-1, the place of each row among the rows of its value."""
    count = np.bincount(sorted_N, minlength=kinds)
    return np.arange(len(sorted_N)) - np.repeat(np.cumsum(count) - count, count)
