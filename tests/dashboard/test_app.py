"""The admin service over HTTP, before a real pool."""

import asyncio
import json
import re

import httpx
import pytest
from starlette.routing import Route

from moonpool.core.admin_section import AdminConfig
from moonpool.core.errors import BadConfig
from moonpool.dashboard.app import Admin
from moonpool.dashboard.openapi import description
from moonpool.dashboard.watch import Watch
from moonpool.pool.aio import AsyncPool
from tests.dashboard.conftest import client_of
from tests.tree import ROOT


async def test_an_object_goes_in_and_out(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    put = await http.put("/v1/objects/a/b c", params={"replicas": 2}, content=b"value")
    assert (put.status_code, put.json()) == (201, {"status": "stored", "replicas": 2, "size": 5})
    assert await pool.get("a/b c") == b"value"
    got = await http.get("/v1/objects/a/b c")
    assert (got.status_code, got.content) == (200, b"value")
    assert got.headers["x-moonpool-node"] in ("node0", "node1")
    head = await http.head("/v1/objects/a/b c")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "5", b"")
    again = await http.put("/v1/objects/a/b c", content=b"other")
    assert (again.status_code, again.json()["status"]) == (200, "exists")
    other = await http.put("/v1/objects/a/b c", params={"replace": "true"}, content=b"other")
    assert other.status_code == 201 and await pool.get("a/b c") == b"other"
    assert (await http.delete("/v1/objects/a/b c")).json() == {"status": "removed"}
    gone = await http.get("/v1/objects/a/b c")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "absent")
    assert (await http.head("/v1/objects/a/b c")).status_code == 404
    assert (await http.delete("/v1/objects/a/b c")).status_code == 404


async def test_options_of_a_put(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    parent = {"parent": "root", "ttl_s": "60"}
    missing = await http.put("/v1/objects/leaf", params=parent, content=b"x")
    assert (missing.status_code, missing.json()["error"]["code"]) == (507, "parent_missing")
    await pool.put("root", b"r")
    assert (await http.put("/v1/objects/leaf", params=parent, content=b"x")).status_code == 201


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("replica=2", "unknown option 'replica'"),
        ("replicas=two", "is no number"),
        ("replace=yes", "neither true nor false"),
        ("replicas=99", "replicas"),
        ("ttl_s=-1", "ttl_s"),
    ],
)
async def test_a_bad_option_stores_nothing(
    http: httpx.AsyncClient, pool: AsyncPool, query: str, said: str
) -> None:
    refused = await http.put(f"/v1/objects/k?{query}", content=b"x")
    assert refused.status_code == 400 and said in refused.json()["error"]["message"]
    assert not await pool.exists("k")


async def test_a_body_that_is_too_long(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    whole = await http.put("/v1/objects/k", content=bytes(65_537))

    async def pieces() -> "object":
        for _ in range(3):
            yield bytes(30_000)

    streamed = await http.put("/v1/objects/k", content=pieces())  # type: ignore[arg-type]
    assert whole.status_code == streamed.status_code == 413
    await pool.put("big", bytes(70_000))
    assert (await http.get("/v1/objects/big")).status_code == 413
    assert not await pool.exists("k")


async def test_a_key_too_long(http: httpx.AsyncClient) -> None:
    refused = await http.get("/v1/objects/" + "k" * 2000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_key")


async def test_more_requests_than_allowed_are_told_to_come_again(http: httpx.AsyncClient) -> None:
    go_on, asked = asyncio.Event(), 0

    async def slow() -> "object":
        nonlocal asked
        asked += 1
        yield b"x"
        await go_on.wait()

    running = [
        asyncio.create_task(http.put(f"/v1/objects/{i}", content=slow()))  # type: ignore[arg-type]
        for i in range(4)
    ]
    while asked < 4:
        await asyncio.sleep(0)
    refused = await http.get("/v1/objects/other")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    go_on.set()
    assert [answer.status_code for answer in await asyncio.gather(*running)] == [201] * 4


async def test_listing(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    await pool.put_many([f"list/{i}" for i in range(5)], [bytes(i + 1) for i in range(5)])
    told = (await http.get("/v1/objects", params={"prefix": "list/", "limit": 5})).json()
    assert {one["key"]: one["size"] for one in told["objects"]} == {
        f"list/{i}": i + 1 for i in range(5)
    }
    assert not told["more"]
    assert (await http.get("/v1/objects", params={"prefix": "list/", "limit": 2})).json()["more"]
    assert (await http.get("/v1/objects", params={"limit": "x"})).status_code == 400


async def test_a_listing_is_followed_page_by_page(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    keys = [f"page/{i}" for i in range(25)]
    await pool.put_many([*keys, "other"], [b"x"] * 26)
    found: list[str] = []
    ask: dict[str, str | int] = {"prefix": "page/", "limit": 10}
    pages = 0
    while True:
        pages += 1
        told = (await http.get("/v1/objects", params=ask)).json()
        assert len(told["objects"]) <= 10
        found += [one["key"] for one in told["objects"]]
        if not told["more"]:
            break
        ask["cursor"] = told["next_cursor"]
    assert sorted(found) == sorted(keys) and pages >= 3
    assert (await http.get("/v1/objects", params={"cursor": "-1"})).status_code == 400


async def test_a_request_is_explained(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    await pool.put("first", b"x")
    told = (await http.get("/v1/explain?key=first&key=second")).json()
    assert (told["hits"], told["first_miss"]["key"]) == (1, "second")
    assert (await http.get("/v1/explain")).status_code == 400


async def test_events_can_be_followed(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    start = (await http.get("/v1/events")).json()
    position = {"term": start["term"], "sequence": start["next_sequence"]}
    await pool.put("e", b"1")
    await pool.remove("e")
    told = (await http.get("/v1/events", params={**position, "wait_s": 5})).json()
    assert told["events"][0]["medium"] == ""
    assert [(one["kind"], one["key"]) for one in told["events"]][:1] == [("put", "e")]
    assert not told["rebase"]


async def test_health_and_readiness(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}
    ready = await http.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "why": ""})


async def test_a_pool_that_is_away_is_said(pool: AsyncPool, config: AdminConfig) -> None:
    class Stopped:
        def monotonic(self) -> float:
            return 0.0

        def boottime_ns(self) -> int:
            return 0

        def wall_ms(self) -> int:
            return 0

    async with client_of(Admin(pool, Watch(pool, config, Stopped()), config)) as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        assert (await http.get("/v1/stat")).status_code == 503
        assert "moonpool_up 0" in (await http.get("/metrics")).text


async def test_the_token_guards_all_but_page_and_health(
    pool: AsyncPool, watch: Watch, cluster: object
) -> None:
    config = AdminConfig(token="secret")
    async with client_of(Admin(pool, watch, config)) as http:
        for path in ("/", "/health"):
            assert (await http.get(path)).status_code == 200
        for path in ("/metrics", "/ready", "/v1/stat", "/v1/objects/k", "/openapi.json", "/none"):
            assert (await http.get(path)).status_code == 401, path
            for wrong in ("Bearer secre", "Bearer secret2", "secret", "Basic secret"):
                headers = {"authorization": wrong}
                assert (await http.get(path, headers=headers)).status_code == 401
        right = {"authorization": "Bearer secret"}
        assert (await http.get("/ready", headers=right)).status_code == 200
        put = await http.put("/v1/objects/k", content=b"x")
        assert put.status_code == 401 and not await pool.exists("k")


def test_no_token_no_open_door() -> None:
    with pytest.raises(BadConfig, match="MOONPOOL_TOKEN"):
        AdminConfig(host="0.0.0.0").check()


async def test_metrics_tell_hits_and_misses(
    http: httpx.AsyncClient, pool: AsyncPool, watch: Watch
) -> None:
    before = numbers((await http.get("/metrics")).text)
    await pool.put_many(["m1", "m2"], [b"12345", b"123"])
    await pool.get_many(["m1", "m2", "m3"])
    await pool.flush()
    await pool.exists(["m1", "m4"])
    await watch.look()
    after = numbers((await http.get("/metrics")).text)

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert grown('moonpool_puts_total{status="committed"}') == 2
    assert grown('moonpool_lookups_total{status="absent"}') == 1
    assert grown('moonpool_exists_total{status="found"}') == 1
    assert grown('moonpool_exists_total{status="absent"}') == 1
    assert grown("moonpool_reads_total") == 2
    assert grown("moonpool_read_bytes_total") == 8
    assert after["moonpool_objects"] == 2
    assert grown("moonpool_request_seconds_count") > 0


def numbers(page: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_every_metric_of_the_grafana_page_exists(http: httpx.AsyncClient) -> None:
    page = (ROOT / "deploy/grafana/moonpool.json").read_text()
    asked = set(re.findall(r"\bmoonpool_\w+", " ".join(expressions(json.loads(page)))))
    there = set(re.findall(r"^# TYPE (\w+)", (await http.get("/metrics")).text, re.M))
    there |= {f"{name}_{end}" for name in there for end in ("bucket", "sum", "count")}
    assert len(asked) > 8 and asked <= there


async def test_every_metric_of_the_page_is_there_from_the_start(http: httpx.AsyncClient) -> None:
    page = (ROOT / "docs/seen-from-outside.md").read_text()
    rows = page[page.index("| metric | why |") : page.index("`deploy/grafana")].splitlines()[2:]
    cells = [row.split("|")[1] for row in rows if row.startswith("|")]
    named = [one for cell in cells for one in re.findall(r"`([\w*]+)(?:\{([\w,]+)\})?`", cell)]
    text = (await http.get("/metrics")).text
    for name, labels in named:
        shown = name.replace("*", r"\w+")
        sample = re.search(rf"^moonpool_{shown}(?:_count)?(?:{{.*}})? [\d.e+]+$", text, re.M)
        assert sample, name
        assert all(f"{label}=" in sample[0] for label in labels.split(",") if label), sample[0]
    assert len(named) > 15
    for status in ("found", "absent", "evicted", "expired"):
        assert f'moonpool_lookups_total{{status="{status}"}} ' in text


def expressions(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["expr"]] if "expr" in value else []
        return own + [text for part in value.values() for text in expressions(part)]
    if isinstance(value, list):
        return [text for part in value for text in expressions(part)]
    return []


async def test_the_description_names_every_route(
    http: httpx.AsyncClient, pool: AsyncPool, watch: Watch, config: AdminConfig
) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert paths == description()["paths"]
    routes = {
        route.path.replace(":path}", "}"): (route.methods or set()) | {"HEAD"}
        for route in Admin(pool, watch, config).application().routes
        if isinstance(route, Route)
    }
    told = {path: {one.upper() for one in methods} | {"HEAD"} for path, methods in paths.items()}
    assert told == routes
    for path, methods in paths.items():
        for method in methods:
            answer = await http.request(method, path.replace("{key}", "no-such-key"), content=b"x")
            assert answer.status_code not in (405, 500), (method, path)
            # What no route answers says so in plain text.
            assert "Not Found" not in answer.text, (method, path)
    assert (await http.get("/no/such/path")).text == "Not Found"


async def test_the_page_needs_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert re.findall(r'(?:src|href)="[^"]*"|https?://(?!www\.w3\.org)\S+', page.text) == []


async def test_tasks_over_http(http: httpx.AsyncClient, pool: AsyncPool) -> None:
    await pool.put("moved", b"value")
    (here,) = (await pool.match_prefix(["moved"])).nodes
    other = "node1" if here == "node0" else "node0"
    begun = await http.post("/v1/tasks", json={"kind": "move", "keys": ["moved"], "to": other})
    assert begun.status_code == 202
    id_ = begun.json()["id"]
    info = await pool.task(id_).wait()
    assert info.ok and info.size == 5
    told = (await http.get(f"/v1/tasks/{id_}")).json()
    assert (told["state"], told["to"]) == ("done", other)
    assert told["results"] == [{"key": "moved", "outcome": "done"}]
    assert id_ in [one["id"] for one in (await http.get("/v1/tasks")).json()["tasks"]]
    assert (await http.delete(f"/v1/tasks/{id_}")).json()["state"] == "done"
    assert (await http.get("/v1/tasks/1-1")).json()["state"] == "lost"
    assert (await http.get("/v1/tasks/1-1")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"kind": "copy", "keys": ["a"], "to": "nobody"}',
        b'{"kind": "copy", "keys": ["a"], "to": "node0", "source": "node1"}',
        b'{"kind": "shred", "keys": ["a"]}',
        b'{"kind": "copy", "keys": ["a"], "to": "node0", "deadline_s": -1}',
        b'{"kind": "copy", "keys": ["a"], "at": "node0"}',
    ],
)
async def test_a_body_that_is_no_task(http: httpx.AsyncClient, body: bytes) -> None:
    refused = await http.post("/v1/tasks", content=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_input")
