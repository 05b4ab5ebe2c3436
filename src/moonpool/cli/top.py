"""`moonpool top`: the pool live in the terminal, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moonpool.cli.client import add_client_options
from moonpool.cli.options import load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.cli.signals import sigterm_interrupts
from moonpool.core.admin_section import AdminConfig
from moonpool.core.clock import SystemClock
from moonpool.core.errors import BadInput, Refused
from moonpool.core.sections import ClientConfig
from moonpool.core.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from moonpool.dashboard.watch import Rates, Watch

EXAMPLES = (
    "moonpool top                      # once a second",
    "moonpool top --every 5 --json     # one JSON object every five seconds",
    "moonpool top --once               # one look, for scripts",
)
_BAR = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="between looks (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="two looks and out")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    if not 0.05 <= args.every <= 60:
        raise BadInput(f"--every {args.every:g}: give 0.05 to 60 seconds")
    with sigterm_interrupts():
        try:
            asyncio.run(_watch(args, output))
        except KeyboardInterrupt:
            pass
    return EXIT_OK


async def _watch(args: argparse.Namespace, output: Output) -> None:
    from moonpool.dashboard.watch import Watch
    from moonpool.pool.aio import connect_with

    client = load_settings(args, ClientConfig).value
    config = AdminConfig(master=client.master, poll_ms=round(args.every * 1000))
    async with await connect_with(client) as pool:
        watch = Watch(pool, config, SystemClock())
        await watch.look()
        if watch.last is not None and "segments" not in watch.last.figures:
            raise Refused("the pool's figures are its operator's; `moonpool stat` shows your own")
        if args.once or output.as_json or not sys.stdout.isatty():
            await _lines(watch, args, output)
        else:
            await _screen(watch, args.every, client.master)


async def _lines(watch: Watch, args: argparse.Namespace, output: Output) -> None:
    while True:
        await asyncio.sleep(args.every)
        await watch.look()
        history = watch.history()
        record: dict[str, Any] = {"unready": watch.unready}
        if history:
            record.update(history[-1]._asdict())
        output.result(record, _line(history[-1], watch.unready) if history else watch.unready)
        if args.once:
            return


async def _screen(watch: Watch, every_s: float, master: str) -> None:
    from rich.live import Live

    with Live(_picture(watch, master), auto_refresh=False, screen=True) as live:
        while True:
            await asyncio.sleep(every_s)
            await watch.look()
            live.update(_picture(watch, master), refresh=True)


def _line(now: Rates, unready: str) -> str:
    hits = "-" if now.hit_share is None else f"{now.hit_share:.1%}"
    return (
        f"{now.objects:,} objects, {format_bytes(now.committed_bytes)}; {now.reads:,.0f} reads/s "
        f"({format_bytes(round(now.read_bytes))}/s), {now.puts:,.0f} puts/s, "
        f"{now.evicted:,.0f} evicted/s, found {hits}; {unready or 'ready'}"
    )


def _picture(watch: Watch, master: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    last, history = watch.last, watch.history()
    unready = watch.unready
    head = Text.assemble(
        ("Moonpool ", "bold"), f"{master}  ", (unready or "ready", "red" if unready else "green")
    )
    if last is None:
        return head
    now = Text(_line(history[-1], unready) if history else "")
    columns = ("node", "medium", "state", "", "committed", "capacity", "objects", "views")
    table = Table(*columns, box=None)
    for one in last.figures["segments"].values():
        share = one["committed_bytes"] / max(1, one["capacity_bytes"])
        filled = round(share * _BAR)
        table.add_row(
            one["node"],
            one["medium"],
            Text(one["state"], "green" if one["alive"] else "red"),
            "█" * filled + "·" * (_BAR - filled),
            format_bytes(one["committed_bytes"]),
            format_bytes(one["capacity_bytes"]),
            f"{one['objects']:,}",
            str(one["usage"].get("pins", 0)),
        )
    shown: list[RenderableType] = [head, now, Text(), table]
    if len(last.figures["tenants"]) > 1:
        shown += [Text(), _tenants(last.figures["tenants"])]
    return Group(*shown, Text("\nCtrl-C ends it", "dim"))


def _tenants(tenants: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table("tenant", "has", "quota", "borrowed", "objects", "evicted", box=None)
    for name, one in tenants.items():
        sizes = [one["committed_bytes"], one["quota_bytes"], one["borrowed_bytes"]]
        counts = [one["objects"], one["evicted_objects"]]
        table.add_row(name, *map(format_bytes, sizes), *(f"{count:,}" for count in counts))
    return table
