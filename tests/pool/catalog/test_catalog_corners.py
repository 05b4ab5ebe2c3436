"""Lives that the model's random ones come by once in thousands, lived on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pool.catalog.test_catalog_model import KEYS, CatalogModel

A, B, C = KEYS[:3]


class Life(CatalogModel):
    def reserved(self, *keys: bytes, under: bytes | None = None, chain: bool = False) -> None:
        self.reserve([*keys], [1] * 5, chain, True, 1, 0, under, 1)
        self.looked_at()

    def committed(self, count: int = 4) -> None:
        self.commit(min(self.open), count)
        self.looked_at()

    def there(self, *keys: bytes, under: bytes | None = None) -> None:
        self.reserved(*keys, under=under)
        self.committed()

    def removed(self, *keys: bytes) -> None:
        self.remove([*keys])
        self.looked_at()

    def looked_at(self) -> None:
        self.visible_is_what_was_committed()
        self.columns_agree_and_capacity_holds()
        self.no_row_leaks()


@pytest.fixture
def life() -> Iterator[Life]:
    life = Life()
    life.start([40])
    yield life
    life.teardown()


def test_a_value_replaced_under_itself_that_went_meanwhile(life: Life) -> None:
    life.there(A)
    life.reserved(A, under=A)
    life.removed(A)
    life.committed()
    assert set(life.values) == {A} and not life.parents


@pytest.mark.parametrize("count", [1, 2])
def test_two_under_each_other_that_went_meanwhile(life: Life, count: int) -> None:
    """Together they come; one alone lacks its parent."""
    life.there(A, B)
    life.reserved(A, B, under=B, chain=True)
    life.removed(A, B)
    life.committed(count)
    assert set(life.values) == ({A, B} if count == 2 else set())


def test_what_was_sealed_for_a_refused_commit_gives_its_slot_back(life: Life) -> None:
    for _ in range(8):  # of six slots
        life.there(A)
        life.reserved(B, under=A)
        life.removed(A)
        life.committed()
        assert not life.values


@pytest.mark.parametrize("under", [None, B])
def test_a_value_replaced_under_another_parent_that_went_meanwhile(
    life: Life, under: bytes | None
) -> None:
    life.there(A, B)
    life.there(C, under=A)
    life.reserved(C, under=under)
    life.removed(C)
    life.committed()
    assert life.parents == ({C: B} if under else {})
    life.removed(A)
    assert set(life.values) == {B, C}
