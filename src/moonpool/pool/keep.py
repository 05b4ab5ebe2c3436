"""How firmly an object is to be kept, as callers say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from moonpool.core.errors import BadInput

_KINDS: dict[str | None, int] = {None: 0, "soft": 1, "hard": 2}
_PRIORITIES: dict[str, int] = {"normal": 0, "low": 4, "high": 8}
TTL_S_MAX = 1e10
GROUP_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class Keep:
    """`pin` of a put in full. "soft": goes after all that is not pinned, for `ttl_s` (30 minutes
    unless given), which reads begin anew with `refresh`. "hard": never evicted. `priority`: "low"
    goes before "normal", that before "high"; parents stand as firmly as their children. `group`:
    objects of the same group (name of at most 255 bytes) are read and evicted together."""

    pin: Literal["soft", "hard"] | None = None
    ttl_s: float | None = None
    refresh: bool = False
    priority: Literal["low", "normal", "high"] = "normal"
    group: str | bytes = b""

    def __post_init__(self) -> None:
        if self.pin not in _KINDS:
            raise BadInput(f"pin is None, 'soft' or 'hard', not {self.pin!r}")
        if self.priority not in _PRIORITIES:
            raise BadInput(f"priority is 'low', 'normal' or 'high', not {self.priority!r}")
        if self.pin != "soft" and (self.ttl_s is not None or self.refresh):
            raise BadInput("ttl_s and refresh belong to a soft pin")
        ttl_s = self.ttl_s
        if ttl_s is not None and (not isinstance(ttl_s, int | float) or not 0 < ttl_s <= TTL_S_MAX):
            raise BadInput(f"ttl_s is a number of seconds up to {TTL_S_MAX:.0f}, not {ttl_s!r}")
        if not isinstance(self.group, str | bytes) or len(self.group_name) > GROUP_BYTES_MAX:
            raise BadInput(
                f"group is a name of at most {GROUP_BYTES_MAX} bytes, not {self.group!r}"
            )

    @property
    def code(self) -> int:
        """As it travels and lies in the slot."""
        return _KINDS[self.pin] | _PRIORITIES[self.priority]

    @property
    def group_name(self) -> bytes:
        """As it travels; empty: none."""
        return self.group.encode() if isinstance(self.group, str) else self.group

    @property
    def ttl_ms(self) -> int:
        """0: the master's default."""
        return 0 if self.ttl_s is None else max(1, int(self.ttl_s * 1000))


_BARE = {None: Keep(), "soft": Keep("soft"), "hard": Keep("hard")}


def as_keep(pin: Any) -> Keep:
    """Raises BadInput."""
    if isinstance(pin, Keep):
        return pin
    try:
        return _BARE[pin]
    except (KeyError, TypeError):
        raise BadInput(f"pin is None, 'soft', 'hard' or a Keep, not {pin!r}") from None
