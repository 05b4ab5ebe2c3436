"""A new master hears its nodes first: reads are answered at once, puts and removals wait.

starts       grace_ms > 0
ends         no inventory is on its way, and grace_ms are over or all expected nodes reported
"""

from __future__ import annotations

from moonpool.core.sections import MasterConfig
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.master_links import Links


class Recovery:
    """When it is over. `nodes_expected` ends it early; 0: not known."""

    def __init__(
        self, config: MasterConfig, catalog: Catalog, links: Links, nodes_expected: int
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._expected = nodes_expected
        self._names: set[str] | None = None
        self._grace_s = config.grace_ms / 1000
        self._forget_after_s = config.forget_after_s
        self._until: float | None = None
        self.going_on = config.grace_ms > 0
        catalog.rows.rebuilding = self.going_on

    def over(self, now: float) -> bool:
        """True once: what waited for the end may be answered."""
        if not self.going_on:
            return False
        if self._until is None:
            self._until = now + self._grace_s
        if self._links.reporting or (now < self._until and not self._all_reported):
            return False
        self.going_on = False
        self._catalog.rows.orphan_all()
        return True

    def expect(self, names: set[str]) -> None:
        """These are all the nodes that anybody may be reading from."""
        self._names = names

    @property
    def awaited(self) -> set[str]:
        """Nodes of the last leader, until this recovery is over."""
        return self._names or set() if self.going_on else set()

    @property
    def _all_reported(self) -> bool:
        if self._names is not None:
            return self._names <= self._links.reported_names
        return 0 < self._expected <= self._links.reported

    @property
    def next_deadline(self) -> float | None:
        # A node that still reports ends the recovery by a message, or by its lease.
        return self._until if self.going_on and not self._links.reporting else None

    def strangers(self, now: float) -> bool:
        """There may be nodes, older than this master, that it has not heard of."""
        if self._grace_s == 0 or self._until is None:
            return self._grace_s > 0
        if self._names is not None:  # those away for longer are not among them
            return now < self._until + self._forget_after_s
        return not self._all_reported and now < self._until + self._forget_after_s
