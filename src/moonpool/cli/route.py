"""`moonpool route explain`: where a running router would send a prompt, and why."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.tables import table_text
from moonpool.core.errors import BadInput

EXAMPLES = (
    "moonpool route explain 'Once upon a time'                   # a router on this machine",
    "moonpool route explain --tokens 1,15,100 --router http://r:8000",
    "moonpool route explain -                                    # the prompt comes on stdin",
)
_COLUMNS = ("worker", "rank", "cost", "hit tokens", "from pool", "prefilling", "blocks", "requests")
_SCORE = (
    *("worker", "rank", "cost", "hit_tokens", "pool_tokens", "prefill_tokens"),
    *("decode_blocks", "requests"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("explain",), help="what to do")
    parser.add_argument("prompt", nargs="?", default="", help="the text, or - for stdin")
    parser.add_argument("--tokens", metavar="IDS", help="token ids instead, separated by commas")
    parser.add_argument("--router", metavar="URL", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="", help="needed where several are served")
    parser.add_argument("--token", metavar="TOKEN", help="MOONPOOL_TOKEN otherwise")


def run(args: argparse.Namespace, output: Output) -> int:
    question = _question(args)
    told = _ask(args, question)
    scores = told["scores"]
    output.result(told, _sentence(told))
    rows = [[_cell(score, name) for name in _SCORE] for score in scores]
    output.text(table_text(_COLUMNS, rows))
    for problem in told["problems"]:
        output.text(f"problem: {problem}")
    return EXIT_OK if scores else EXIT_FAILED


def _question(args: argparse.Namespace) -> dict[str, Any]:
    if args.tokens:
        try:
            ids = [int(word) for word in args.tokens.split(",")]
        except ValueError:
            raise BadInput(f"--tokens {args.tokens!r}: write ids as 1,15,100") from None
        return {"model": args.model, "token_ids": ids}
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not text:
        raise BadInput("give a prompt, or --tokens")
    return {"model": args.model, "prompt": text}


def _ask(args: argparse.Namespace, question: dict[str, Any]) -> dict[str, Any]:
    import asyncio
    import os

    from moonpool.core.errors import Refused, RouterError
    from moonpool.router.http.fetch import fetch

    token = args.token or os.environ.get("MOONPOOL_TOKEN", "")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    body = json.dumps(question).encode()
    url = f"{args.router.rstrip('/')}/explain"
    answer = asyncio.run(fetch(url, body=body, headers=headers))
    if answer.status == 401:
        raise Refused("the router wants its token; set MOONPOOL_TOKEN")
    try:
        told: dict[str, Any] = json.loads(answer.body)
        if answer.status != 200:
            raise RouterError(told["error"]["message"])
    except (ValueError, KeyError, TypeError):
        raise RouterError(f"{url} is no router's: it answered {answer.status}") from None
    return told


def _sentence(told: dict[str, Any]) -> str:
    hit, total = told["predicted_hit_tokens"], told["prompt_tokens"]
    sentence = f"{told['instance_id']} ({told['reason']}): {hit} of {total} tokens held there"
    if "prefill" in told:
        sentence += f", prefilled by {told['prefill']['instance_id']}"
    return sentence


def _cell(score: dict[str, Any], name: str) -> str:
    value = score[name]
    if name == "cost":
        return "busy" if value is None else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
