"""The accounting of a replay."""

from moonpool.planner.replay import Ledger, Outcome, hit_tokens


def outcome(tokens: int = 1000, blocks: int = 0, seconds: float = 0.0) -> Outcome:
    return Outcome(tokens, blocks, bytes_read=blocks * 10, bytes_written=5, seconds=seconds)


def test_a_partial_last_block_counts_what_the_prompt_has() -> None:
    assert hit_tokens(2, 512, 1500) == 1024
    assert hit_tokens(3, 512, 1500) == 1500


def test_figures_sum_what_was_recorded() -> None:
    ledger = Ledger(block_tokens=512)
    ledger.record(outcome(1000, 1, seconds=1e-6))
    ledger.record(outcome(1000, 2, seconds=3e-6))
    figures = ledger.figures()
    assert (figures.requests, figures.input_tokens, figures.hit_tokens) == (2, 2000, 1512)
    assert figures.token_hit_ratio == 1512 / 2000
    assert (figures.prefix_hit_blocks, figures.bytes_read, figures.bytes_written) == (3, 30, 10)
    assert round(figures.p50_us, 6) == 2.0
    assert round(figures.gb_per_s, 9) == 0.01


def test_errors_are_counted_by_reason() -> None:
    ledger = Ledger(block_tokens=512)
    assert ledger.figures().errors == {}
    ledger.error("unreachable", 2)
    ledger.error("corrupt")
    assert ledger.figures().errors == {"corrupt": 1, "unreachable": 2}


def test_an_empty_replay_has_no_ratio() -> None:
    figures = Ledger(block_tokens=512).figures()
    assert (figures.token_hit_ratio, figures.gb_per_s, figures.p99_us) == (0.0, 0.0, 0.0)
    assert Ledger(block_tokens=512).windows() == []


def test_windows_cover_every_request_once() -> None:
    ledger = Ledger(block_tokens=512)
    for index in range(130):
        ledger.record(outcome(512, index % 2, seconds=1e-3))
    windows = ledger.windows(count=60)
    assert len(windows) <= 60
    assert windows[-1].end == 130
    assert windows[-1].token_hit_ratio_so_far == ledger.figures().token_hit_ratio
