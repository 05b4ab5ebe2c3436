"""Command-line options made from configuration sections, and sections made from options."""

import argparse
import os
from collections.abc import Collection, Mapping

from moonpool.core.config import Loaded, S, Section, Setting
from moonpool.core.sections import SCHEMA

_METAVARS = {"bytes": "SIZE", "ms": "TIME", "s": "TIME"}


def add_settings(
    parser: argparse.ArgumentParser, section: type[Section], skip: Collection[str] = ()
) -> None:
    """One option per setting of `section`, in a group of its name, except those in `skip`."""
    group = parser.add_argument_group(section.SECTION)
    for item in section.settings():
        if item.name not in skip:
            _add(group, item)


def load_settings(
    args: argparse.Namespace, section: type[S], env: Mapping[str, str] | None = None
) -> Loaded[S]:
    """`section` from the options given, the environment and --config. Raises BadConfig."""
    given = {item.name: getattr(args, _dest(item), None) for item in section.settings()}
    return SCHEMA.load(section, cli=given, env=os.environ if env is None else env, file=args.config)


def _add(group: argparse._ArgumentGroup, item: Setting) -> None:
    # argparse formats help with %, and the default is ours to show: None means "not given".
    default = "" if item.default in ("", {}) else f" (default: {item.show(item.default)})"
    text = f"{item.help}{default}".replace("%", "%%")
    if item.is_flag:
        group.add_argument(
            item.option,
            action=argparse.BooleanOptionalAction,
            default=None,
            dest=_dest(item),
            help=text,
        )
    else:
        metavar = _METAVARS.get(item.unit, item.name.upper())
        group.add_argument(item.option, metavar=metavar, dest=_dest(item), help=text)


def _dest(item: Setting) -> str:
    return f"{item.section}__{item.name}"
