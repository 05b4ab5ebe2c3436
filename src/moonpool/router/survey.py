"""One request against all its targets: what each holds, how loaded it is, what it would cost."""

from __future__ import annotations

import numpy as np

from moonpool.router.base import RouteRequest
from moonpool.router.cost import Cost, Facts
from moonpool.router.fleet import Fleet
from moonpool.router.index import Depths, Found, Places, PrefixIndex
from moonpool.router.learner import Learner
from moonpool.router.load import Column, LoadBook
from moonpool.router.prompt import Prompt


class Survey:
    """Reads the brain's parts; changes nothing."""

    def __init__(
        self,
        fleet: Fleet,
        load: LoadBook,
        index: PrefixIndex,
        learner: Learner,
        cost: Cost,
        peers_transfer: bool,
    ) -> None:
        self._fleet = fleet
        self._load = load
        self._index = index
        self._learner = learner
        self._cost = cost
        self._peers_transfer = peers_transfer

    def look(self, prompt: Prompt, places: Places) -> tuple[Facts, Column]:
        """The facts and the cost of each place."""
        facts = self._load_facts(prompt, places)
        first = int(facts.block_size[0])
        weights = None
        if (
            prompt.token_array is not None
            and not self._peers_transfer
            and (facts.block_size == first).all()
            and self._fleet.one_group
        ):
            weights = self._cost.weights(facts)
        if weights is None or prompt.token_array is None:
            facts = self._with_found(prompt, places, facts)
            return facts, self._cost.costs(facts)
        costs, found, hashes = self._index.route(
            prompt.token_array, first, prompt.seed(), places, weights
        )
        prompt.keep(first, hashes)
        return _with_tokens(facts, found.held.astype(np.float64), float(found.pool)), costs

    def _load_facts(self, prompt: Prompt, places: Places) -> Facts:
        load, learnt = self._load, self._learner
        sizes = self._fleet.block_sizes(places)
        nothing = np.zeros(len(places))
        blocks = prompt.tokens / sizes
        new_blocks = np.ceil(blocks) if self._cost.counts_tail else np.floor(blocks)
        if self._cost.counts_blocks_once:
            for i, (place, size) in enumerate(zip(places.tolist(), sizes.tolist(), strict=True)):
                hashes = prompt.hashes(int(size)).tolist()
                new_blocks[i] += load.new_blocks(place, hashes) - len(hashes)
        return Facts(
            prompt.tokens,
            prompt.request.output_tokens,
            prompt.request.priority,
            sizes,
            nothing,
            nothing,
            nothing,
            nothing,
            load.prefill_tokens[places],
            load.decode_blocks[places],
            new_blocks,
            load.requests[places],
            learnt.prefill_s[places],
            learnt.transfer_s[places],
            learnt.decode_block_s[places],
            self._filled(places),
            self._preferred(prompt.request, places),
        )

    def _filled(self, places: Places) -> Column:
        capacities, ones = self._fleet.capacities(places), np.ones(len(places))
        if not capacities.any() or self._index.evicted:
            return ones
        taken = self._load.taken_blocks(places, self._index.on_device(places).astype(np.float64))
        filled: Column = np.divide(taken, capacities, out=ones, where=capacities > 0)
        return np.minimum(1.0, filled)

    def _with_found(self, prompt: Prompt, places: Places, facts: Facts) -> Facts:
        tokens = np.zeros((3, len(places)))
        pool = 0.0
        for size in np.unique(facts.block_size).astype(np.int64).tolist():
            of_size = np.flatnonzero(facts.block_size == size)
            found = self._find(prompt, size, places[of_size])
            again = self._cost.computes_last_block
            tokens[:, of_size] = prompt.covered(found.held, size, again)
            pool = max(pool, float(prompt.covered(np.array([found.pool]), size, again)[0]))
        if self._peers_transfer:
            pool = max(pool, float(tokens[0].max(initial=0.0)))
        return _with_tokens(facts, tokens, pool)

    def _find(self, prompt: Prompt, size: int, places: Places) -> Found:
        """The least over the KV groups that each place publishes; usually there is one."""
        groups = [self._fleet.groups(place) for place in places.tolist()]
        held: Depths | None = None
        pool = 0
        for group in sorted({group for known in groups for group in known}):
            found = self._index.find(prompt.hashes(size, group), places)
            pool = max(pool, found.pool)
            if held is None:
                held = found.held
                continue
            has = np.array([group in known for known in groups])
            first = np.array([known[0] == group for known in groups])
            less = np.where(first, found.held, np.minimum(held, found.held))
            held = np.where(has, less, held)
        assert held is not None
        return Found(held, pool)

    def _preferred(self, request: RouteRequest, places: Places) -> Column:
        weights = np.zeros(len(places))
        for wanted, weight in request.preferred.items():
            label, _, value = wanted.partition("=")
            for i, place in enumerate(places.tolist()):
                if self._fleet.member_at(place).worker.labels.get(label) == value:
                    weights[i] += weight
        return weights


def _with_tokens(facts: Facts, tokens: Column, pool: float) -> Facts:
    """`tokens` f64[3, places] are cumulative by tier."""
    return facts._replace(
        device_tokens=tokens[0],
        host_tokens=tokens[1] - tokens[0],
        disk_tokens=tokens[2] - tokens[1],
        pool_tokens=np.maximum(0.0, pool - tokens[2]),
    )
