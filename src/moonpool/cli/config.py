"""`moonpool config`: what is in force, and where each value came from."""

import argparse
import os

from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.core.config import Described
from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.core.sections import SCHEMA

EXAMPLES = (
    "moonpool config                      # every setting of every section",
    "moonpool config node                 # of one section",
    "moonpool config --config prod.toml   # as it would be with that file",
    "moonpool config --markdown           # the page docs/configuration.md",
)


def configure(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(SCHEMA.sections)
    parser.add_argument("section", nargs="?", help=f"one of {names}; all when not given")
    parser.add_argument("--markdown", action="store_true", help="print the reference page instead")


def run(args: argparse.Namespace, output: Output) -> int:
    if args.markdown:
        from moonpool.core.config_page import configuration_page

        print(configuration_page(SCHEMA), end="")
        return EXIT_OK
    for name in _asked(args.section):
        loaded = SCHEMA.load(SCHEMA.sections[name], env=os.environ, file=args.config)
        output.text(f"[{name}]")
        for row in loaded.describe():
            output.result(_record(row), _line(row))
        output.text("")
    return EXIT_OK


def _asked(section: str | None) -> list[str]:
    if section is None:
        return list(SCHEMA.sections)
    if section not in SCHEMA.sections:
        raise BadConfig(f"unknown section '{section}'.{did_you_mean(section, SCHEMA.sections)}")
    return [section]


def _record(row: Described) -> dict[str, object]:
    item = row.setting
    value = item.show(row.value) if item.secret else row.value
    return {"setting": item.path, "value": value, "unit": item.unit, "origin": row.origin}


def _line(row: Described) -> str:
    item = row.setting
    return f"  {item.name:<20} {item.show(row.value):<24} {row.origin}"
