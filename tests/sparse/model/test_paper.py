"""SAC in the model: what is calibrated comes out, what is predicted or held out is near."""

import pytest

from moonpool.sparse.model import constants as c
from moonpool.sparse.model import paper


@pytest.fixture(scope="module")
def step() -> paper.Step:
    return paper.calibrated_step()


@pytest.fixture(scope="module")
def fitted(step: paper.Step) -> paper.Fitted:
    return paper.fit(step)


def test_the_step_gives_back_its_ablations(step: paper.Step) -> None:
    whole = step.floor_s + step.scan_s + step.swap_s
    assert c.CLIENTS.value / whole == pytest.approx(c.SAC_TOKENS_PER_S.value)
    with_dram = step.floor_s + step.scan_s + step.dram_swap_s
    assert with_dram / whole == pytest.approx(c.OF_DRAM.value)
    larger = step.floor_s + step.scan_s + step.swap_s * (0.134 + 0.067) / 2 / 0.134
    assert whole / larger == pytest.approx(c.LARGER_BUFFER.value)


def test_what_no_ablation_set_is_plausible(step: paper.Step) -> None:
    assert 1.04 <= step.cxl_over_dram <= 1.64  # published, as a range of latencies
    assert 0.03 < step.implied_miss_ratio < 0.134
    gain = paper.interleaving_gain(step)
    assert abs(gain / c.INTERLEAVING.value - 1) < 0.05


def test_three_numbers_fit_the_headline(step: paper.Step, fitted: paper.Fitted) -> None:
    for ours, theirs in zip(paper.mean_ratios(step, fitted), paper.HEADLINE, strict=True):
        assert ours == pytest.approx(theirs, rel=0.02)
    assert fitted.rdma_bytes_per_s < c.NIC_100.value
    near = paper.miss_of_headline(step, fitted)
    for field in ("rdma_bytes_per_s", "fixed_s"):
        for factor in (0.9, 1.1):
            other = fitted._replace(**{field: getattr(fitted, field) * factor})
            assert paper.miss_of_headline(step, other) > near


def test_without_a_disturbed_decode_the_headline_cannot_be_had(
    step: paper.Step, fitted: paper.Fitted
) -> None:
    means = paper.mean_ratios(step, fitted._replace(fetching_speed=1.0))
    assert means.tbt < 1.1


def test_held_out_lengths_are_within_a_quarter(step: paper.Step, fitted: paper.Fitted) -> None:
    for tokens, published in paper.HELD_OUT.items():
        gain = paper.largest_gain(tokens, step, fitted)
        assert abs(gain / published - 1) < 0.25, tokens


def test_what_ifs_go_the_way_they_must(step: paper.Step, fitted: paper.Fitted) -> None:
    def ratio(variant: paper.Variant) -> float:
        return paper.both(131072, step, fitted, variant).throughput_ratio

    plain = ratio(paper.Variant())
    assert 1 < ratio(paper.Variant(nic=4)) < plain
    assert 1 < ratio(paper.Variant(row_bytes=656)) < plain
    # A fetch of seconds hides behind a step of milliseconds in no way.
    assert ratio(paper.Variant(layerwise=True)) == pytest.approx(plain, rel=0.01)
