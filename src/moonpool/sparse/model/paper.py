"""SAC's own experiment in the model: its ablations first, then its headline, then what-ifs. Pure.

The ablations are ratios of one step's time, and give it its parts; nothing of the headline is used:

    step = floor + scan of all index keys (HBM) + swap of the buffer's misses (pool)

    tokens a second at 128K            -> the step
    6K rows in the buffer over 4K      -> the swap, by the published miss curve's ratio
    DRAM instead of CXL                -> how much slower CXL swaps (published: 1.04 to 1.64 x)
    no interleaving                    -> predicted: ranks fall on devices at random

The headline then needs three numbers that no source gives, and they are fitted: the rate at which
the RDMA pool fetches whole prefixes, a fixed time of every request, and how fast decode goes on
while a fetch runs; were it untouched, no setting would make the RDMA side's steps slower.
Throughput at single lengths is held out.
Everything from here is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from moonpool.sparse.layout import BF16_ROW_BYTES, INDEX_KEY_BYTES
from moonpool.sparse.model import constants as c
from moonpool.sparse.model.links import Prefix
from moonpool.sparse.model.serving import Load, Served, Side, serve
from moonpool.sparse.policy import miss_ratio

LENGTHS: Final = (16384, 32768, 65536, 131072)
HELD_OUT: Final = {
    32768: c.LARGEST_32K.value,
    65536: c.LARGEST_64K.value,
    131072: c.LARGEST_128K.value,
}
CLIENTS_TRIED: Final = (16, 32, 64)  # "largest gain" is over the number of clients
_SHRINKS: Final = 12
_START_STEP: Final = 2.0


class Step(NamedTuple):
    """Parts of a decode step of all clients at 128K and the smaller buffer, in seconds."""

    floor_s: float
    scan_s: float
    swap_s: float
    dram_swap_s: float

    @property
    def cxl_over_dram(self) -> float:
        return self.swap_s / self.dram_swap_s

    @property
    def implied_miss_ratio(self) -> float:
        """Misses that make this swap at the pool's published rate."""
        prefix = Prefix(LENGTHS[-1], BF16_ROW_BYTES)
        asked = c.CLIENTS.value * prefix.step_rows * prefix.row_bytes
        return self.swap_s * pool_bytes_per_s() / asked


class Fitted(NamedTuple):
    """What the headline needs and no source gives."""

    rdma_bytes_per_s: float
    fixed_s: float
    fetching_speed: float
    """Of decode while a fetch runs, on both sides."""


class Variant(NamedTuple):
    """A what-if: other rows, another NIC (as a factor), bytes moved while layers compute."""

    row_bytes: int = BF16_ROW_BYTES
    nic: float = 1.0
    layerwise: bool = False


class Both(NamedTuple):
    """On-demand from CXL, beside RDMA that fetches whole prefixes."""

    sac: Served
    rdma: Served

    @property
    def throughput_ratio(self) -> float:
        return self.sac.tokens_per_s / self.rdma.tokens_per_s

    @property
    def ttft_ratio(self) -> float:
        return self.rdma.ttft_s / self.sac.ttft_s

    @property
    def tbt_ratio(self) -> float:
        return self.rdma.tbt_s / self.sac.tbt_s


def pool_bytes_per_s() -> float:
    """Of all ranks together: the devices or the adapters, whichever end first."""
    return min(c.ADAPTERS.value * c.CXL_GPU.value, c.DEVICES.value * c.CXL_DEVICE.value)


def scan_s(tokens: int, clients: float) -> float:
    """Index keys of every request, read from a rank's memory at each step."""
    keys = Prefix(tokens, BF16_ROW_BYTES).keys_bytes
    return clients / c.RANKS.value * keys / c.H20_MEMORY.value


def calibrated_step() -> Step:
    """From three ablations; see the top."""
    step_s = c.CLIENTS.value / c.SAC_TOKENS_PER_S.value
    top_k = int(c.TOP_K.value)
    small, large = (
        miss_ratio(int(rows.value), top_k) for rows in (c.BUFFER_ROWS, c.BUFFER_ROWS_LARGE)
    )
    swap_s = step_s * (1 - 1 / c.LARGER_BUFFER.value) / (1 - large / small)
    dram_swap_s = swap_s - step_s * (1 - c.OF_DRAM.value)
    keys_s = scan_s(LENGTHS[-1], c.CLIENTS.value)
    return Step(step_s - swap_s - keys_s, keys_s, swap_s, dram_swap_s)


def interleaving_gain(step: Step) -> float:
    """Ranks that fall on one of two devices at random, instead of half on each."""
    ranks = int(c.RANKS.value)
    most = sum(math.comb(ranks, n) * max(n, ranks - n) for n in range(ranks + 1)) / float(2**ranks)
    interleaved_s = step.floor_s + step.scan_s + step.swap_s
    return (interleaved_s + step.swap_s * (most / (ranks / 2) - 1)) / interleaved_s


def both(
    tokens: int,
    step: Step,
    fitted: Fitted,
    variant: Variant = Variant(),  # noqa: B008
    clients: int = int(c.CLIENTS.value),
) -> Both:
    """The two systems under the same load."""
    prefix = Prefix(tokens, variant.row_bytes)
    load = Load(clients, int(c.OUTPUTS.value), int(c.WAVES.value))
    rows = variant.row_bytes / BF16_ROW_BYTES
    scan_each_s = scan_s(tokens, 1)
    first_rows_s = prefix.step_rows * prefix.row_bytes / pool_bytes_per_s()

    def side(fetch_s: float, swap_s: float, first_s: float) -> Side:
        each_s = scan_each_s + swap_s * rows / c.CLIENTS.value
        first_step_s = step.floor_s + clients * each_s
        hidden_s = min(fetch_s, first_step_s) if variant.layerwise else 0.0
        fixed_s = max(0.0, fitted.fixed_s + first_s - hidden_s)
        return Side(fetch_s, fixed_s, step.floor_s, each_s, min(1.0, fitted.fetching_speed))

    keys_s = prefix.keys_bytes / pool_bytes_per_s()
    whole_s = (prefix.full_bytes + prefix.keys_bytes) / (fitted.rdma_bytes_per_s * variant.nic)
    return Both(
        serve(side(keys_s, step.swap_s, first_rows_s), load),
        serve(side(whole_s, step.dram_swap_s, first_rows_s / step.cxl_over_dram), load),
    )


class Means(NamedTuple):
    """Of the three ratios over all lengths."""

    throughput: float
    ttft: float
    tbt: float


HEADLINE: Final = Means(c.HEADLINE_THROUGHPUT.value, c.HEADLINE_TTFT.value, c.HEADLINE_TBT.value)


def mean_ratios(step: Step, fitted: Fitted) -> Means:
    found = [both(tokens, step, fitted) for tokens in LENGTHS]
    return Means(
        sum(pair.throughput_ratio for pair in found) / len(found),
        sum(pair.ttft_ratio for pair in found) / len(found),
        sum(pair.tbt_ratio for pair in found) / len(found),
    )


def miss_of_headline(step: Step, fitted: Fitted) -> float:
    """Sum of squared logarithms of model over paper, for the three means."""
    pairs = zip(mean_ratios(step, fitted), HEADLINE, strict=True)
    return sum(math.log(ours / theirs) ** 2 for ours, theirs in pairs)


def fit(step: Step) -> Fitted:
    """The three numbers that come closest to the headline: a compass search over their logarithms,
    from half a NIC, half a second and half the speed. A speed below a hundredth is none."""

    def cost(at: tuple[float, ...]) -> float:
        tried = Fitted(*at)
        return miss_of_headline(step, tried) if 0.01 <= tried.fetching_speed <= 1 else math.inf

    return Fitted(*_compass(cost, (c.NIC_100.value / 2, 0.5, 0.5)))


def largest_gain(tokens: int, step: Step, fitted: Fitted) -> float:
    """Throughput over RDMA at the number of clients where it gains most."""
    return max(
        both(tokens, step, fitted, clients=clients).throughput_ratio for clients in CLIENTS_TRIED
    )


def keys_ceiling(row_bytes: int) -> float:
    """The most that TTFT can gain by bytes alone, when keys come over the same link in both."""
    return 1 + row_bytes / INDEX_KEY_BYTES


def _compass(
    cost: Callable[[tuple[float, ...]], float], start: tuple[float, ...]
) -> tuple[float, ...]:
    """Minimises by factors: one number at a time up or down, smaller factors when none helps."""
    at, best, factor = start, cost(start), _START_STEP
    for _ in range(_SHRINKS):
        better = True
        while better:
            better = False
            for index in range(len(at)):
                for times in (factor, 1 / factor):
                    tried = (*at[:index], at[index] * times, *at[index + 1 :])
                    found = cost(tried)
                    if found < best * (1 - 1e-6):
                        at, best, better = tried, found, True
        factor = math.sqrt(factor)
    return at
