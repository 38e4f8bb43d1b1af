"""The store in Redis or Valkey, for servers on several machines. The only file that imports redis.

An accepted event survives the death of the server where that keeps an append-only file (`appendonly yes`).

Keys, all beginning with `falconet:`; PERSON is the JSON of [kind, id], ids are JSON too, which tells 7 from "7":

    meta                   hash: format
    last                   string: the number of the last event
    event                  hash: number to the event, `same TAB event_id TAB rest`, each JSON
    event_ids              hash: event id to number
    of:PERSON              sorted set, all scores 0: `time:number`, both of 20 digits, so in the order of time
    types:PERSON           set of the types of that person's events
    seen:PERSON TAB TYPE   set of items
    change, changes, item  number of the last change; sorted set of items by number; hash: item to
                           `1` or `0`, hidden or not, and the JSON of [features, expires]
    user                   hash: user to profile
    page:ID, shown:ID      hash: person, request; list of items
    pages                  sorted set of page ids by time; pages_of:PERSON: set of page ids
    impression, shown_ids  hash: number to JSON; hash: recommendation id to number
    impressions_of:PERSON  set of numbers
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from falconet.errors import ArtifactError, ConfigError
from falconet.serve.events import CLASH, FUTURE, Event, Id, Outcome, Who, latest_time
from falconet.serve.store import FORMAT, Impression, ItemChange, Page, export_batch, export_schema

_P = "falconet:"
_ROWS = 1000  # read at once

_ADD = """
local p, said = ARGV[1], {}
for i = 2, #ARGV, 7 do
  local id, same, rest, person, kind, item, time = unpack(ARGV, i, i + 6)
  local known = redis.call('HGET', p .. 'event_ids', id)
  if known then
    local found = redis.call('HGET', p .. 'event', known)
    said[#said + 1] = string.sub(found, 1, #same + 1) == same .. '\\t' and 'duplicate' or 'clash'
  else
    local number = redis.call('INCR', p .. 'last')
    redis.call('HSET', p .. 'event', number, same .. '\\t' .. id .. '\\t' .. rest)
    redis.call('HSET', p .. 'event_ids', id, number)
    redis.call('ZADD', p .. 'of:' .. person, 0, time .. ':' .. string.format('%020.0f', number))
    redis.call('SADD', p .. 'types:' .. person, kind)
    redis.call('SADD', p .. 'seen:' .. person .. '\\t' .. kind, item)
    said[#said + 1] = 'accepted'
  end
end
return said
"""

# Deletes the events of a person before a time ('' for all), and makes the sets of what was seen anew.
_DROP = """
local p, person, before, gone = ARGV[1], ARGV[2], ARGV[3], 0
local all = redis.call('ZRANGE', p .. 'of:' .. person, 0, -1)
for _, kind in ipairs(redis.call('SMEMBERS', p .. 'types:' .. person)) do
  redis.call('DEL', p .. 'seen:' .. person .. '\\t' .. kind)
end
redis.call('DEL', p .. 'types:' .. person)
for _, member in ipairs(all) do
  local number = string.format('%.0f', tonumber(string.sub(member, 22)))
  local event = redis.call('HGET', p .. 'event', number)
  if before == '' or string.sub(member, 1, 20) < before then
    local id = string.match(event, '^[^\\t]*\\t([^\\t]*)\\t')
    redis.call('HDEL', p .. 'event', number)
    redis.call('HDEL', p .. 'event_ids', id)
    redis.call('ZREM', p .. 'of:' .. person, member)
    gone = gone + 1
  else
    local kind, item = string.match(event, '^[^\\t]*\\t[^\\t]*\\t[^\\t]*\\t([^\\t]*)\\t([^\\t]*)$')
    redis.call('SADD', p .. 'types:' .. person, kind)
    redis.call('SADD', p .. 'seen:' .. person .. '\\t' .. kind, item)
  end
end
return gone
"""

_PUT = """
local p, item, state = ARGV[1], ARGV[2], ARGV[3]
local known = redis.call('HGET', p .. 'item', item)
if known and ARGV[4] == 'hide' then
  state = '1' .. string.sub(known, 2)
elseif known and ARGV[4] == 'keep' then
  state = string.sub(state, 1, 1) .. string.match(known, '^.(%[.*,)[^,]*$') .. string.match(state, ',([^,]*)$')
end
local number = redis.call('INCR', p .. 'change')
redis.call('ZADD', p .. 'changes', number, item)
redis.call('HSET', p .. 'item', item, state)
return number
"""

_SAVE = """
local p, id = ARGV[1], ARGV[2]
if redis.call('EXISTS', p .. 'page:' .. id) == 1 then return 0 end
redis.call('HSET', p .. 'page:' .. id, 'person', ARGV[3], 'request', ARGV[4])
if #ARGV > 5 then redis.call('RPUSH', p .. 'shown:' .. id, unpack(ARGV, 6)) end
redis.call('ZADD', p .. 'pages', ARGV[5], id)
if ARGV[3] ~= 'null' then redis.call('SADD', p .. 'pages_of:' .. ARGV[3], id) end
return 1
"""

_EXTEND = """
local p, id, known = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('EXISTS', p .. 'page:' .. id) == 0 then return 0 end
if redis.call('LLEN', p .. 'shown:' .. id) ~= known then return 0 end
if #ARGV > 3 then redis.call('RPUSH', p .. 'shown:' .. id, unpack(ARGV, 4)) end
return 1
"""

_SHOW = """
local p, id, person, what = unpack(ARGV)
if redis.call('HEXISTS', p .. 'shown_ids', id) == 1 then return 0 end
local number = redis.call('INCR', p .. 'last_impression')
redis.call('HSET', p .. 'shown_ids', id, number)
redis.call('HSET', p .. 'impression', number, what)
if person ~= 'null' then redis.call('SADD', p .. 'impressions_of:' .. person, number) end
return 1
"""


class RedisStore:
    """A `Store` in a Redis or Valkey server.

    Raises ConfigError where the package is missing, ArtifactError where the server cannot be used.
    """

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        try:
            import redis
        except ImportError as error:
            raise ConfigError("a store in Redis needs its client", hint='pip install "falconet[redis]"') from error
        self._redis, self._where = redis, url.partition("://")[2].rpartition("@")[2]
        with self._in_words():
            self._client: Any = redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=timeout, socket_connect_timeout=timeout
            )
            self._client.hsetnx(_P + "meta", "format", str(FORMAT))
            found = int(self._client.hget(_P + "meta", "format"))  # type: ignore[arg-type]
        if found != FORMAT:
            raise ArtifactError(f"`{self._where}` has store format {found}, this version reads {FORMAT}")
        self._add, self._drop, self._put, self._save, self._extend, self._show = (
            self._client.register_script(script) for script in (_ADD, _DROP, _PUT, _SAVE, _EXTEND, _SHOW)
        )

    def __str__(self) -> str:
        return f"redis://{self._where}"

    @property
    def outages(self) -> tuple[type[Exception], ...]:
        return (self._redis.ConnectionError, self._redis.TimeoutError)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (self._redis.RedisError, ValueError) as error:
            raise ArtifactError(f"`{self._where}` cannot be used as a store: {error}") from error

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        latest = latest_time()
        arguments, known = [], []
        for event in events:
            assert event.time is not None
            known.append(event.time <= latest)
            if not known[-1]:
                continue
            item, person = _json(event.item_id), _person(event.who)
            same = _json([event.who.kind, event.who.id, event.item_id, event.type])
            # ends in the type and the item, which the scripts read
            rest = f"{_json([event.value, event.time, event.recommendation_id])}\t{_json(event.type)}\t{item}"
            arguments += [_json(event.event_id), same, rest, person, _json(event.type), item, f"{event.time:020d}"]
        said = iter(self._run(self._add, *arguments) if arguments else [])
        return [CLASH if one == "clash" else one for one in (next(said) if fine else FUTURE for fine in known)]

    def latest(self, who: Who, rows: int) -> list[tuple[Id, str]]:
        members = self._client.zrevrange(f"{_P}of:{_person(who)}", 0, rows - 1)
        return [(row[4], row[5]) for _, row in self._events([int(member[21:]) for member in members])]

    def seen(self, who: Who, types: Collection[str] | None = None) -> list[Id]:
        person = _person(who)
        kinds = self._client.smembers(f"{_P}types:{person}") if types is None else [_json(kind) for kind in types]
        keys = [f"{_P}seen:{person}\t{kind}" for kind in kinds]
        return [json.loads(item) for item in self._client.sunion(keys)] if keys else []

    def export(self, since: int = 0, rows: int = 100_000) -> Iterator[pa.RecordBatch]:
        last = int(self._client.get(_P + "last") or 0)
        texts = [False, False, False]
        for _, row in self._range(since, last):
            texts = [text or isinstance(value, str) for text, value in zip(texts, row[2:5], strict=True)]
        schema = export_schema(texts)
        batch: list[Sequence[Any]] = []
        for _, row in self._range(since, last):
            batch.append(row)
            if len(batch) == rows:
                yield export_batch(schema, batch)
                batch = []
        if batch:
            yield export_batch(schema, batch)

    def _range(self, since: int, last: int) -> Iterator[tuple[int, Sequence[Any]]]:
        for start in range(since + 1, last + 1, _ROWS):
            yield from self._events(range(start, min(start + _ROWS, last + 1)))

    def _events(self, numbers: Sequence[int]) -> Iterator[tuple[int, Sequence[Any]]]:
        """(number, the columns of `export`) of those events that are there."""
        if not numbers:
            return
        for number, text in zip(numbers, self._client.hmget(f"{_P}event", [str(n) for n in numbers]), strict=True):
            if text is None:
                continue
            same, event_id, rest, _, _ = text.split("\t")
            kind, who, item, type_ = json.loads(same)
            value, time, recommendation = json.loads(rest)
            user, session = (who, None) if kind == "user" else (None, who)
            yield number, (number, json.loads(event_id), user, session, item, type_, value, time, recommendation)

    def put_item(
        self,
        item_id: Id,
        *,
        features: Mapping[str, Any] | None = None,
        hidden: bool = False,
        expires: int | None = None,
    ) -> int:
        state = f"{int(hidden)}{_json([features, expires])}"
        return int(self._run(self._put, _json(item_id), state, "keep" if features is None else "put"))

    def hide_item(self, item_id: Id) -> int:
        return int(self._run(self._put, _json(item_id), f"1{_json([None, None])}", "hide"))

    def items_changed_since(self, number: int) -> list[ItemChange]:
        changed = self._client.zrangebyscore(f"{_P}changes", f"({number}", "+inf", withscores=True)
        states = self._client.hmget(f"{_P}item", [item for item, _ in changed]) if changed else []
        found = []
        for (item, at), state in zip(changed, states, strict=True):
            features, expires = json.loads(state[1:])
            found.append(
                ItemChange(
                    item_id=json.loads(item), number=int(at), hidden=state[0] == "1", expires=expires, features=features
                )
            )
        return found

    def change_number(self) -> int:
        return int(self._client.get(_P + "change") or 0)

    def put_user(self, user_id: Id, profile: Mapping[str, Any]) -> None:
        self._client.hset(f"{_P}user", _json(user_id), _json(profile))

    def get_user(self, user_id: Id) -> dict[str, Any] | None:
        found = self._client.hget(f"{_P}user", _json(user_id))
        return None if found is None else dict(json.loads(found))

    def profiles(self) -> Iterator[tuple[Id, dict[str, Any]]]:
        for user, profile in self._client.hscan_iter(f"{_P}user", count=_ROWS):
            yield json.loads(user), dict(json.loads(profile))

    def save_page(self, recommendation_id: str, page: Page, time: int) -> None:
        shown = [_json(item) for item in page.shown]
        self._run(self._save, recommendation_id, _person(page.who), _json(page.request), str(time), *shown)

    def page(self, recommendation_id: str) -> Page | None:
        with self._client.pipeline() as both:  # one transaction
            both.hgetall(f"{_P}page:{recommendation_id}")
            both.lrange(f"{_P}shown:{recommendation_id}", 0, -1)
            found, shown = both.execute()
        if not found:
            return None
        return Page(
            who=_who(found["person"]), request=json.loads(found["request"]), shown=tuple(json.loads(x) for x in shown)
        )

    def extend_page(self, recommendation_id: str, known: int, items: Sequence[Id]) -> bool:
        return bool(self._run(self._extend, recommendation_id, str(known), *(_json(item) for item in items)))

    def log_impressions(self, impressions: Sequence[Impression]) -> None:
        for one in impressions:
            what = [one.recommendation_id, one.time, one.bundle, one.items, one.scenario, one.variant]
            person = _person(one.who)
            self._run(self._show, one.recommendation_id, person, _json([person, *what]))

    def impressions(self, since: int = 0) -> Iterator[tuple[int, Impression]]:
        last = int(self._client.get(_P + "last_impression") or 0)
        for start in range(since + 1, last + 1, _ROWS):
            numbers = range(start, min(start + _ROWS, last + 1))
            for number, text in zip(
                numbers, self._client.hmget(f"{_P}impression", [str(n) for n in numbers]), strict=True
            ):
                if text is not None:
                    person, name, time, bundle, items, scenario, variant = json.loads(text)
                    yield (
                        number,
                        Impression(
                            recommendation_id=name,
                            who=_who(person),
                            time=time,
                            bundle=bundle,
                            items=tuple(items),
                            scenario=scenario,
                            variant=variant,
                        ),
                    )

    def forget(self, who: Who) -> int:
        person = _person(who)
        for page in self._client.smembers(f"{_P}pages_of:{person}"):
            self._drop_page(page)
        for number in self._client.smembers(f"{_P}impressions_of:{person}"):
            self._drop_impression(int(number))
        if who.kind == "user":
            self._client.hdel(f"{_P}user", _json(who.id))
        return int(self._run(self._drop, person, ""))

    def forget_before(self, time: int) -> int:
        gone = 0
        for page in self._client.zrangebyscore(f"{_P}pages", "-inf", f"({time}"):
            self._drop_page(page)
        for number, one in self.impressions():
            if one.time < time:
                self._drop_impression(number)
        for key in self._client.scan_iter(match=f"{_P}of:*", count=_ROWS):
            gone += int(self._run(self._drop, key.removeprefix(f"{_P}of:"), f"{time:020d}"))
        return gone

    def _drop_page(self, recommendation_id: str) -> None:
        person = self._client.hget(f"{_P}page:{recommendation_id}", "person")
        with self._client.pipeline() as all_of_it:
            all_of_it.delete(f"{_P}page:{recommendation_id}", f"{_P}shown:{recommendation_id}")
            all_of_it.zrem(f"{_P}pages", recommendation_id)
            all_of_it.srem(f"{_P}pages_of:{person}", recommendation_id)
            all_of_it.execute()

    def _drop_impression(self, number: int) -> None:
        text = self._client.hget(f"{_P}impression", str(number))
        if text is None:
            return
        person, name, *_ = json.loads(text)
        with self._client.pipeline() as all_of_it:
            all_of_it.hdel(f"{_P}impression", str(number))
            all_of_it.hdel(f"{_P}shown_ids", name)
            all_of_it.srem(f"{_P}impressions_of:{person}", str(number))
            all_of_it.execute()

    def close(self) -> None:
        self._client.close()

    def _run(self, script: Any, *arguments: str) -> Any:
        return script(args=[_P, *arguments])


def _json(value: Any) -> str:
    """JSON in ASCII, without tabs and blanks."""
    return json.dumps(value, separators=(",", ":"))


def _person(who: Who | None) -> str:
    return "null" if who is None else _json([who.kind, who.id])


def _who(person: str) -> Who | None:
    found = json.loads(person)
    return None if found is None else Who(*found)
