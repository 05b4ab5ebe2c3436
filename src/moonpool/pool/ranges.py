"""Reading parts of objects, as the blocking pool offers it."""

from __future__ import annotations

from moonpool.pool.inputs import Key, as_count, as_key
from moonpool.pool.protocol_range import get_range
from moonpool.pool.results import Hit
from moonpool.pool.shell import Shell


class Ranges:
    """Part of Pool."""

    _shell: Shell
    _timeout_s: float

    def get_range(
        self,
        key: Key,
        offset: int,
        size: int,
        *,
        verify: bool = False,
        timeout_s: float | None = None,
    ) -> bytes | None:
        """At most `size` bytes of the object from `offset` on, or None: a miss. Never bytes of two
        versions. With `verify` the whole object is read and its CRC checked.

        Raises BadSize when the object ends before `offset`.
        """
        named = as_key(key)
        start, length = as_count(offset, "offset"), as_count(size, "size")
        timeout = self._timeout_s if timeout_s is None else timeout_s
        answer = self._shell.run(
            lambda context: get_range(context, named, start, length, verify), timeout
        )
        return answer.data if isinstance(answer, Hit) else None
