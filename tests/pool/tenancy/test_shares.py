"""Who gives room to whom: quotas, borrowing and its return, by the numbers."""

from __future__ import annotations

from moonpool.core.tenants import Tenant, Tenants
from moonpool.pool.tenancy.shares import ALL, Left, Shares, Stage


def shares(capacity: int = 1000, **tenants: Tenant) -> Shares:
    made = Shares(Tenants(tenants.values()))
    made.capacity_is(capacity)
    return made


def tenant(name: str, quota: int = 0, weight: float = 1.0, **how: object) -> Tenant:
    return Tenant(name=name, token=name, quota_bytes=quota, weight=weight, **how)  # type: ignore[arg-type]


def holding(made: Shares, **sizes: int) -> None:
    for name, size in sizes.items():
        found = made.tenants.named(name)
        assert found is not None
        held = made.usage.of(found.number)
        held.committed_bytes, held.objects = size, size // 10


def whose(made: Shares, name: str, size: int) -> list[tuple[str, int]]:
    found = made.tenants.named(name)
    assert found is not None
    stages = made.stages(found.number, size, 1, by_objects=False)
    return [(made.tenants.get(one.tenant).name, one.most_bytes) for one in stages]


def test_within_its_quota_borrowers_give_what_they_borrowed() -> None:
    made = shares(a=tenant("a", 500), b=tenant("b", 500))
    holding(made, a=300, b=700)
    assert whose(made, "a", 100) == [("b", 200), ("a", ALL)]


def test_nobody_within_its_quota_gives() -> None:
    made = shares(a=tenant("a", 300), b=tenant("b", 500))
    holding(made, a=500, b=500)
    assert whose(made, "a", 100) == [("a", ALL)]


def test_borrowers_share_by_weight() -> None:
    made = shares(a=tenant("a", 0, 1), b=tenant("b", 0, 3))
    holding(made, a=500, b=500)
    # b has 167 for each of its weight, 170 with the new object: a gives until it has no more.
    assert whose(made, "b", 10) == [("a", 330), ("b", ALL)]
    assert whose(made, "a", 10) == [("a", ALL)]


def test_the_deepest_debtor_gives_first() -> None:
    made = shares(2000, a=tenant("a", 400), b=tenant("b", 100), c=tenant("c", 100))
    holding(made, a=0, b=300, c=900)
    assert whose(made, "a", 100) == [("c", 800), ("b", 200), ("a", ALL)]


def test_who_left_the_file_gives_first_of_all() -> None:
    made = shares(a=tenant("a", 100), b=tenant("b", 0))
    holding(made, a=0, b=900)
    made.usage.of(99).committed_bytes = 1
    assert made.stages(tenant("a").number, 10, 1, by_objects=False)[0].tenant == 99


def test_places_are_shared_as_bytes_are() -> None:
    made = shares(a=tenant("a", quota_objects=50), b=tenant("b", quota_objects=10))
    holding(made, a=0, b=900)
    first = made.stages(tenant("a").number, 0, 5, by_objects=True)[0]
    assert first == Stage(tenant("b").number, most_objects=80)


def test_quotas_beyond_what_there_is_shrink_alike() -> None:
    made = shares(500, a=tenant("a", 600), b=tenant("b", 400))
    assert [made.quota_bytes(tenant(n, q)) for n, q in (("a", 600), ("b", 400))] == [300, 200]
    made.capacity_is(2000)
    assert made.quota_bytes(tenant("a", 600)) == 600


def test_what_may_not_borrow_has_an_end() -> None:
    made = shares(a=tenant("a", 300, borrow=False, quota_objects=9), b=tenant("b", 300))
    holding(made, a=100, b=100)
    assert made.left(tenant("a").number) == Left(200, -1)
    assert made.left(tenant("b").number) == Left(ALL, ALL)
    assert made.left(tenant("b").number, pinned=True).nbytes == 200  # borrowed is never pinned
