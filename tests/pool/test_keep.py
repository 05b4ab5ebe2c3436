"""`pin=` of a put: what callers may say, and that it reaches the catalog."""

from __future__ import annotations

import pytest

import moonpool
from moonpool.core.errors import BadInput
from moonpool.pool.keep import Keep, as_keep
from moonpool.pool.results import PutStatus


@pytest.mark.parametrize(
    "what",
    [
        {"pin": "very"},
        {"priority": "urgent"},
        {"ttl_s": 5},
        {"pin": "hard", "refresh": True},
        {"pin": "soft", "ttl_s": 0},
        {"pin": "soft", "ttl_s": "1"},
    ],
)
def test_what_means_nothing_is_refused(what: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Keep(**what)  # type: ignore[arg-type]


def test_a_pin_is_one_byte_with_the_priority() -> None:
    assert [Keep(priority=p).code for p in ("normal", "low", "high")] == [0, 4, 8]
    assert as_keep("hard").code == 2 and Keep("soft", priority="high").code == 9
    assert Keep("soft", ttl_s=1.5).ttl_ms == 1500 and as_keep(None).ttl_ms == 0


def test_what_is_pinned_stays_and_what_is_low_goes() -> None:
    with moonpool.Pool.local("64KiB", headroom="256KiB") as pool:
        pool.put("soft", bytes(16 << 10), pin=moonpool.Keep("soft", ttl_s=60, refresh=True))
        pool.put("normal", bytes(16 << 10))
        pool.put("low", bytes(16 << 10), pin=moonpool.Keep(priority="low"))
        for number in range(8):
            pool.put(f"x{number}", bytes(16 << 10), pin=moonpool.Keep(priority="low"))
        assert pool.exists(["soft", "normal", "low"]) == [True, True, False]
        assert pool.stat()["soft_pins"] == 1


def test_a_put_says_that_nothing_may_go() -> None:
    with moonpool.Pool.local("64KiB", headroom="256KiB") as pool:
        pool.put_many(["a", "b"], [bytes(32 << 10)] * 2, pin="hard")
        (result,) = pool.put_many(["c"], [b"x" * 100])
        assert result.status is PutStatus.FULL and "pinned" in result.text
        stat = pool.stat()
        assert stat["futile_evictions"] == 1 and int(str(stat["futile_skipped"])) > 1
