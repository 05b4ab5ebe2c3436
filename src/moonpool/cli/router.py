"""`moonpool router`: an OpenAI-compatible address in front of many workers, until SIGTERM."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from moonpool.cli.options import add_settings, load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.core.errors import BadConfig
from moonpool.core.router_section import RouterConfig

if TYPE_CHECKING:
    from moonpool.engine.tokenizer import Tokenizer

EXAMPLES = (
    "moonpool router --worker http://127.0.0.1:8001 --worker http://127.0.0.1:8002",
    "moonpool router --worker http://a:8001,events=tcp://a:5557 --tokenizer ./model",
    "moonpool router --prefill http://p:8001,transfer=p:7500 --decode http://d:8002",
    "moonpool router --discovery kubernetes:serving/app=vllm   # pods with a label",
)
_ROLES = {
    "workers": ("--worker", "prefills and decodes"),
    "prefill": ("--prefill", "only prefills; needs transfer=HOST:PORT"),
    "decode": ("--decode", "decodes, and prefills what is short"),
}
"""Settings that are lists: the option that gives one of each, and its help."""


def configure(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workers, each 'URL,key=value,...'; may be given repeatedly")
    for name, (option, says) in _ROLES.items():
        group.add_argument(option, action="append", metavar="URL", dest=f"given_{name}", help=says)
    add_settings(parser, RouterConfig, skip=tuple(_ROLES))


def run(args: argparse.Namespace, output: Output) -> int:
    from moonpool.router.service.server import RouterServer, run_router

    for name in _ROLES:
        given = getattr(args, f"given_{name}")
        setattr(args, f"router__{name}", " ".join(given) if given else None)
    config = load_settings(args, RouterConfig).value

    def ready(router: RouterServer) -> None:
        count = len(router.desk.seats)
        record = {"ready": "router", "url": router.url, "workers": count}
        output.result(record, f"router on {router.url} before {count} workers")

    run_router(config, ready, tokenizer_at(config.tokenizer))
    return EXIT_OK


def tokenizer_at(path: str) -> Tokenizer | None:
    """The workers' tokenizer. Raises BadConfig, BadInput, MissingExtra."""
    if not path:
        return None
    from moonpool.engine.tokenizer import load_tokenizer

    found = Path(path).expanduser()
    if not found.exists():
        raise BadConfig(f"router.tokenizer = {path!r} does not exist")
    return load_tokenizer(found)
