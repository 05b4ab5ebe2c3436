"""The sparse performance model, printed: calibration, checks, headline, what-ifs.

Nothing is measured here. With `--from ROWS` (what `moonpool bench sparse --json` printed, two
lengths at least) the model is first held against those measurements. Every row whose figures come
from the model has the subject `simulated`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from moonpool.bench.runner import Row, Settings, make_row
from moonpool.core.errors import BadInput
from moonpool.sparse import BF16_ROW_BYTES, FP8_ROW_BYTES
from moonpool.sparse.model import (
    CONSTANTS,
    ERROR_MAX,
    LINKS,
    Prefix,
    Validation,
    first_step,
    link_checks,
    paper,
    validate,
)
from moonpool.sparse.model import constants as c

BENCH: Final = "sparse-model"
SIMULATED: Final = "simulated"
WHAT_IFS: Final = {
    "as-published": paper.Variant(),
    "nic-400": paper.Variant(nic=4),
    "fp8-rows": paper.Variant(row_bytes=FP8_ROW_BYTES),
    "layerwise": paper.Variant(layerwise=True),
    "nic-400-fp8-layerwise": paper.Variant(FP8_ROW_BYTES, 4, True),
}


def rows(settings: Settings) -> Iterator[Row]:
    """Constants, our own measurements, links, ablations, headline, what-ifs."""
    for constant in CONSTANTS:
        figures = {"value": constant.value, "unit": constant.unit, "kind": constant.kind}
        yield make_row(
            BENCH, f"constant-{constant.name}", 0, {**figures, "source": constant.source}
        )
    if settings.measured:
        measured = measured_rows(Path(settings.measured))
        for validation in validate(measured, settings.tokens):
            yield from _validation(validation)
        for validation in validate(measured, settings.tokens, "median"):
            yield _row(f"validation-{validation.transport}-medians", _summed_up(validation))
    yield from _links()
    step = paper.calibrated_step()
    yield from _ablations(step)
    fitted = paper.fit(step)
    yield from _headline(step, fitted)
    for name, variant in WHAT_IFS.items():
        both = paper.both(paper.LENGTHS[-1], step, fitted, variant)
        yield _row(f"what-if-{name}", _served(both))


def measured_rows(path: Path) -> list[dict[str, Any]]:
    """Raises BadInput for what is no file of rows."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read as rows, one JSON object a line: {error}; make it by "
            f"moonpool bench sparse --json"
        ) from None
    if not all(isinstance(row, dict) for row in found):
        raise BadInput(f"{path} holds a line that is no JSON object")
    return found


def _validation(validation: Validation) -> Iterator[Row]:
    """Rows of the length that calibrated stand in none of these."""
    for one in validation.predicted:
        seen = one.observation
        figures = {"measured_s": seen.seconds, "model_s": one.seconds, "error": one.error}
        yield _row(f"validation-{seen.case}-{seen.figure}", figures)
    yield _row(f"validation-{validation.transport}", _summed_up(validation))


def _summed_up(validation: Validation) -> Row:
    fitted = validation.fitted
    errors = [abs(one.error) for one in validation.predicted]
    return {
        "calibrated_at_tokens": validation.tokens,
        "predicted": len(errors),
        "predicted_within": sum(error <= ERROR_MAX for error in errors),
        "worst_error": validation.worst,
        "error_max": ERROR_MAX,
        "within": validation.worst <= ERROR_MAX,
        "call_us": fitted.call_s * 1e6,
        "in_order": fitted.in_order,
        "gathered": fitted.gathered,
        "beside": fitted.beside,
        "walked": fitted.walked,
        "resolve_ns": fitted.resolve_s * 1e9,
    }


def _links() -> Iterator[Row]:
    for check in link_checks():
        yield _checked(f"link-check: {check.name}", check.model, check.published)
    for tokens in paper.LENGTHS:
        for row_bytes in (FP8_ROW_BYTES, BF16_ROW_BYTES):
            prefix = Prefix(tokens, row_bytes)
            for name, link in LINKS.items():
                found = first_step(prefix, link)
                figures: Row = {
                    "full_s": found.full_s,
                    "keys_s": found.keys_s,
                    "step_s": found.step_s,
                    "first_step_ratio_resident": found.resident_ratio,
                    "first_step_ratio_fetched": found.fetched_ratio,
                    "ceiling_fetched": prefix.ceiling,
                }
                yield _row(f"{tokens}-{row_bytes}-{name}", figures)


def _ablations(step: paper.Step) -> Iterator[Row]:
    yield _row(
        "ablation-step",
        {
            "floor_ms": step.floor_s * 1e3,
            "scan_ms": step.scan_s * 1e3,
            "swap_ms": step.swap_s * 1e3,
            "dram_swap_ms": step.dram_swap_s * 1e3,
            "calibrated_by": "tokens/s at 128K, buffer 6K over 4K, DRAM over CXL",
            "cxl_over_dram": step.cxl_over_dram,
            "cxl_over_dram_published": "1.04 to 1.64",
            "miss_ratio_implied": step.implied_miss_ratio,
            "miss_ratio_of_another_model": 0.134,
        },
    )
    gain = paper.interleaving_gain(step)
    yield _checked("ablation-interleaving: predicted", gain, c.INTERLEAVING.value)


def _headline(step: paper.Step, fitted: paper.Fitted) -> Iterator[Row]:
    yield _row(
        "headline-fitted",
        {
            "rdma_gb_per_s": fitted.rdma_bytes_per_s / 1e9,
            "rdma_of_nic": fitted.rdma_bytes_per_s / c.NIC_100.value,
            "fixed_s": fitted.fixed_s,
            "decode_speed_while_fetching": fitted.fetching_speed,
            "waves_assumed": c.WAVES.value,
        },
    )
    means = paper.mean_ratios(step, fitted)
    for name, ours, theirs in zip(means._fields, means, paper.HEADLINE, strict=True):
        yield _checked(f"headline-{name}: fitted, mean of 16K to 128K", ours, theirs)
    for tokens in paper.LENGTHS:
        yield _row(f"headline-{tokens}", _served(paper.both(tokens, step, fitted)))
    for tokens, published in paper.HELD_OUT.items():
        gain = paper.largest_gain(tokens, step, fitted)
        yield _checked(f"held-out-{tokens}: largest throughput gain", gain, published)
    yield _checked(
        "hypothesis: bytes alone, keys fetched by both (1152 + 132) / 132",
        paper.keys_ceiling(BF16_ROW_BYTES),
        c.HEADLINE_TTFT.value,
    )


def _served(both: paper.Both) -> Row:
    return {
        "throughput_ratio": both.throughput_ratio,
        "ttft_ratio": both.ttft_ratio,
        "tbt_ratio": both.tbt_ratio,
        "sac_tokens_per_s": both.sac.tokens_per_s,
        "rdma_tokens_per_s": both.rdma.tokens_per_s,
        "sac_ttft_s": both.sac.ttft_s,
        "rdma_ttft_s": both.rdma.ttft_s,
        "sac_tbt_ms": both.sac.tbt_s * 1e3,
        "rdma_tbt_ms": both.rdma.tbt_s * 1e3,
    }


def _checked(case: str, model: float, published: float) -> Row:
    return _row(case, {"model": model, "published": published, "error": model / published - 1})


def _row(case: str, figures: Mapping[str, object]) -> Row:
    return make_row(BENCH, case, 0, figures, subject=SIMULATED)
