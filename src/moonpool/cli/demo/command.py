"""The options of `moonpool demo`, and what it prints."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from moonpool.cli.demo import document, picture, story
from moonpool.cli.demo.reference import Reference, measure
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.replay.plot import require_matplotlib
from moonpool.cli.signals import sigterm_interrupts
from moonpool.cli.tables import table_text
from moonpool.core.errors import BadInput, MissingExtra
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory

EXAMPLES = (
    "moonpool demo                  # two engines, one pool, one long document; a few minutes",
    "moonpool demo --json           # every answer, and a last object with all figures",
    "moonpool demo --model my/model # another model; 'smollm2' otherwise",
    "moonpool demo --trace          # an hour of real chat traffic through a pool instead",
)
NODE_BYTES: Final = 1 << 30
ROUNDS_MAX: Final = 15  # as many documents of SmolLM2's fit into the node
KV_MEMORY: Final = "640MiB"
LOOKUP_MS: Final = "2000"  # the machine of a newcomer may be busy; its pool is not silent
DTYPE: Final = "bfloat16"
DTYPES: Final = (DTYPE, "float32")
"""transformers is measured in both: the engine calculates in float32 where a processor has no
bfloat16 arithmetic."""


def configure(parser: argparse.ArgumentParser) -> None:
    from moonpool.engine.model_files import SMOLLM2

    parser.add_argument(
        "--trace", action="store_true", help="replay a chat trace instead; no model needed"
    )
    parser.add_argument("--model", default=SMOLLM2, help=f"directory, .gguf file or '{SMOLLM2}'")
    parser.add_argument(
        "--document", type=Path, metavar="FILE", help="a text to ask about instead of our own"
    )
    parser.add_argument(
        "--rounds", type=_rounds, default=story.ROUNDS, help="medians are over so many (5)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder of the picture (demo-out)"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    if args.trace:
        from moonpool.cli.demo import trace

        return trace.run(args.out, output)
    from moonpool.engine.model_files import locate

    locate(args.model)  # what is missing is said before anything is started
    text = document.chapter() if args.document is None else _read(args.document)
    title = document.TITLE if args.document is None else args.document.name
    threads = len(os.sched_getaffinity(0))
    output.note(f"Engines A and B share a pool on this machine; the document is '{title}'.")
    with sigterm_interrupts():
        rows = _rows(args, text, threads, output)
        output.note("transformers computes the same prompt, for comparison")
        reference = measure(
            args.model,
            document.messages(text, document.QUESTIONS[0]),
            dtypes=DTYPES,
            threads=threads,
            rounds=args.rounds,
        )
    record = _record(args, rows, reference, threads)
    _draw(args.out, rows, record, output)
    output.text(_table(rows))
    output.result(record, _sentence(record))
    return EXIT_OK if record["answers_equal"] else EXIT_FAILED


def _rows(args: argparse.Namespace, text: str, threads: int, output: Output) -> list[story.Row]:
    rows = []
    words = ["--model", args.model, "--threads", str(threads), "--dtype", DTYPE]
    words += ["--kv-memory", KV_MEMORY, "--lookup-ms", LOOKUP_MS]
    with local_directory("demo") as directory:
        node = NodeConfig(name="node0", memory=NODE_BYTES, dir=str(directory), persist=False)
        with Cluster(MasterConfig(port=0, nodes_expected=1), [node]) as cluster:
            cast = story.Cast(words, cluster.address, text, args.rounds)
            with closing(story.tell(cast, output.note)) as told:
                for row in told:
                    rows.append(row)
                    _show(row, output)
    return rows


def _show(row: story.Row, output: Output) -> None:
    if output.as_json:
        output.result(row.record(), "")
    elif row.round == 0 or row.how == story.OFF:
        output.text(_said(row))


def _record(
    args: argparse.Namespace, rows: list[story.Row], reference: Reference, threads: int
) -> dict[str, Any]:
    from moonpool.engine.model_files import name_of

    found = story.summary(rows)
    cold, same = found["cold_ttft_ms"], reference.same_ms
    return {
        **found,
        "reference_cold_ttft_ms": same,
        "reference_dtype": reference.compute or None,
        **{f"reference_{dtype}_ttft_ms": reference.ttft_ms.get(dtype) for dtype in DTYPES},
        "reference_reason": reference.reason,
        "reference_ratio": None if same is None else cold / same,
        "model": name_of(args.model),
        "dtype": DTYPE,
        "threads": threads,
    }


def _draw(folder: Path, rows: list[story.Row], record: dict[str, Any], output: Output) -> None:
    try:
        require_matplotlib()
    except MissingExtra as error:
        output.note(f"no picture: {error}")
        return
    path = folder / "engines.png"
    picture.draw(rows, record, path)
    output.text(f"picture: {path}\n")


def _said(row: story.Row) -> str:
    reused = row.answer.local_tokens + row.answer.pool_tokens
    return (
        f"{row.engine} ({row.how}, {reused:,} of {row.answer.prompt_tokens:,} prompt tokens reused,"
        f" first token after {row.answer.ttft_ms:,.0f} ms)\n"
        f"  Q: {document.QUESTIONS[row.question]}\n"
        f"  A: {row.answer.text.strip()}\n"
    )


def _table(rows: list[story.Row]) -> str:
    heads = ("engine", "how", "prompt tokens", "from own pages", "from the pool", "TTFT ms")
    cells = [
        (
            row.engine,
            row.how if row.round == 0 or row.how == story.OFF else f"{row.how}, round {row.round}",
            row.answer.prompt_tokens,
            row.answer.local_tokens,
            row.answer.pool_tokens,
            round(row.answer.ttft_ms),
            round(row.answer.token_ms, 1),
        )
        for row in rows
    ]
    return table_text((*heads, "ms per token"), cells)


def _sentence(record: dict[str, Any]) -> str:
    ratio = record["reference_ratio"]
    beside = (
        f"no reference: {record['reference_reason']}"
        if ratio is None
        else f"transformers needs {record['reference_cold_ttft_ms']:,.0f} ms in"
        f" {record['reference_dtype']}, which the engine calculates in, too"
    )
    equal = "the same, token by token," if record["answers_equal"] else "NOT the same"
    return (
        f"\nFirst token after {record['cold_ttft_ms']:,.0f} ms when the document is computed"
        f" ({beside}), after {record['pool_ttft_ms']:,.0f} ms when it comes from the pool,"
        f" {record['local_ttft_ms']:,.0f} ms when it is in the engine's own pages: medians of"
        f" {record['rounds']}. All {record['answers']} answers are {equal} from wherever the keys"
        " and values came, and without a pool."
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {file}: {error}") from None


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= ROUNDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {ROUNDS_MAX}")
    return int(text)
