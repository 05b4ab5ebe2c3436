"""Both machines under faults, from a seed: no byte lands in a block that decode has taken back,
none is read from a block that prefill has released, and everything ends. `HANDOFF_SEEDS=from-to`
chooses seeds."""

import os
from collections.abc import Callable

import pytest

from moonpool.core.sections import HandoffConfig
from moonpool.transfer.handoff.node import times_of
from tests.transfer.handoff.world import STEP, Decode, Faults, Prefill, World

FAULTS = {
    "quiet": Faults(),
    "lossy": Faults(lose=0.05),
    "cut": Faults(cut=0.02),
    "stops": Faults(stop=0.006),
    "kills": Faults(kill=0.01),
    "aborts": Faults(abort=0.1),
    "pushes": Faults(push_fails=0.03),
    "all": Faults(lose=0.02, cut=0.01, stop=0.01, kill=0.005, abort=0.05, push_fails=0.01),
}
REQUESTS = 40


def seeds() -> range:
    low, _, high = os.environ.get("HANDOFF_SEEDS", "0-12").partition("-")
    return range(int(low), int(high or int(low) + 1))


def play(seed: int, faults: Faults) -> World:
    """Forty requests against two decode workers, with things going wrong every 50 ms."""
    world = World(seed, faults)
    draw = world.random
    decodes = [world.new_decode("d0"), world.new_decode("d1")]
    wanted: list[str] = []
    for number in range(REQUESTS):
        transfer, decode = f"t{number}", draw.choice(decodes)
        tokens = draw.randrange(1, 5 * STEP)
        first = draw.randrange(0, tokens // STEP + 1) * STEP
        wanted.append(transfer)
        if draw.random() < 0.9:
            world.after(
                draw.random() * 4,
                lambda t=transfer, n=tokens: world.request_at_prefill(t, n),  # type: ignore[misc]
            )
        come_s = draw.random() * 4
        if draw.random() < 0.3:
            world.after(come_s * 0.5, lambda d=decode, t=transfer: world.claim(d, t))  # type: ignore[misc]
        world.after(
            come_s,
            lambda d=decode, t=transfer, f=first, n=tokens: world.request_at_decode(d, t, f, n),  # type: ignore[misc]
        )
        if draw.random() < faults.abort:
            world.after(draw.random() * 5, lambda t=transfer: world.abort_at_prefill(t))  # type: ignore[misc]
        if draw.random() < faults.abort:
            world.after(draw.random() * 5, lambda d=decode, t=transfer: world.abort_at_decode(d, t))  # type: ignore[misc]

    def mischief() -> None:
        for number in list(world.sessions):
            if draw.random() < faults.cut / 10:
                world.cut(number)
        processes: list[Prefill | Decode] = [world.prefill, *decodes]
        for process in processes:
            if draw.random() < faults.stop:
                world.stop_for(process, draw.uniform(0.05, 2.5))
        if draw.random() < faults.kill:
            world.kill_prefill()
        if world.now_s < 6:
            world.after(0.05, mischief)

    world.after(0.05, mischief)
    world.run(60.0)
    return world


@pytest.mark.parametrize("kind", FAULTS)
def test_no_byte_strays_and_everything_ends(kind: str) -> None:
    moved = 0
    for seed in seeds():
        world = play(seed, FAULTS[kind])
        settled = {t: s for d in world.decodes for t, s in d.settled.items()}
        assert len(settled) == REQUESTS, f"seed {seed}: {set(world._asked) - set(settled)}"
        assert not world.prefill.machine.exports, f"seed {seed}"
        assert not any(decode.machine.imports for decode in world.decodes), f"seed {seed}"
        assert all(not owner for d in world.decodes for owner in d.owner.values())
        assert all(not owner for owner in world.prefill.blocks.values()), f"seed {seed}"
        moved += sum(one.ok for one in settled.values())
        if kind == "quiet":
            failed = {t: s for t, s in settled.items() if not s.ok}
            assert all(s.code in ("deadline_exceeded", "busy") for s in failed.values()), failed
    # Faults cost transfers, not all of them: what was not hit arrives.
    assert moved > len(seeds()) * REQUESTS // 8


NEWS: dict[str, Callable[[World, Decode], None]] = {
    "prefill is killed": lambda world, decode: world.kill_prefill(),
    "prefill stops": lambda world, decode: world.stop_for(world.prefill, 60.0),
    "prefill's request is aborted": lambda world, decode: world.abort_at_prefill("t"),
    "decode stops": lambda world, decode: world.stop_for(decode, 60.0),
    "decode's request is aborted": lambda world, decode: world.abort_at_decode(decode, "t"),
}


@pytest.mark.parametrize("news", NEWS)
@pytest.mark.parametrize("moment_ms", range(25, 400, 25))
def test_the_other_side_knows_within_a_second(news: str, moment_ms: int) -> None:
    """By the world's clock, with the settings as they come, once both have the request."""
    for seed in seeds():
        world = World(seed, Faults(), times_of(HandoffConfig()))
        decode, prefill = world.new_decode("d"), world.prefill
        world.request_at_prefill("t", 19)
        world.after(0.01, lambda d=decode, w=world: w.request_at_decode(d, "t", 0, 19))  # type: ignore[misc]
        world.after(moment_ms / 1000, lambda d=decode, w=world: NEWS[news](w, d))  # type: ignore[misc]
        world.run(moment_ms / 1000 + 1.0)
        if news.startswith("prefill"):
            assert "t" in decode.settled and not any(decode.owner.values()), f"seed {seed}"
        else:
            assert "t" in prefill.released and not any(prefill.blocks.values()), f"seed {seed}"


@pytest.mark.soak
def test_many_seeds() -> None:
    for seed in range(1000, 1400):
        play(seed, FAULTS["all"])
