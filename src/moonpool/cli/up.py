"""`moonpool up`: a whole pool on this machine in one command, taken down by Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from moonpool.cli.options import add_settings, load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.signals import sigterm_interrupts
from moonpool.core.admin_section import AdminConfig
from moonpool.core.sections import SCHEMA, MasterConfig, NodeConfig, UpConfig
from moonpool.core.units import counted, format_bytes
from moonpool.pool.cluster import Child, Cluster, local_directory

EXAMPLES = (
    "moonpool up --nodes 2 --memory 1GiB     # a master and two nodes",
    "moonpool up --port 0 --json             # on any free port, told as JSON",
    "moonpool up --admin-port 7480           # with a web page and metrics",
    "moonpool up --persist --dir /dev/shm/x  # objects outlive it until the next 'up'",
)
WATCH_S = 3600.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, UpConfig)


def run(args: argparse.Namespace, output: Output) -> int:
    config = load_settings(args, UpConfig).value
    with sigterm_interrupts(), _directory(config) as directory:
        cluster = Cluster(
            _master_config(config, args.config),
            [_node_config(config, args.config, directory, i) for i in range(config.nodes)],
            inherit_log=True,
        )
        with cluster, _admin(config, cluster.address, args.config) as admin:
            _announce(config, cluster, admin, output)
            try:
                beside = [admin] if admin else []
                while not (dead := cluster.wait(WATCH_S, beside)):
                    pass
            except KeyboardInterrupt:
                output.note("taking the pool down")
                return EXIT_OK
            for child in dead:
                code = child.process.returncode
                output.note(f"{child.name} (pid {child.pid}) ended by itself, status {code}")
            output.note("taking the rest down")
            return EXIT_FAILED


@contextlib.contextmanager
def _directory(config: UpConfig) -> Iterator[Path]:
    """With `persist` the folder itself, so that the next start finds the segments again."""
    if config.persist:
        yield config.directory
    else:
        with local_directory("up", config.directory) as directory:
            yield directory


def _master_config(config: UpConfig, file: str | None) -> MasterConfig:
    given = {"host": config.host, "port": config.port, "token": config.token}
    master = SCHEMA.load(MasterConfig, cli=given, env=os.environ, file=file).value
    # Its nodes come up with it: once they have reported, the first put has nothing to wait for.
    return msgspec.structs.replace(master, nodes_expected=master.nodes_expected or config.nodes)


def _node_config(config: UpConfig, file: str | None, directory: Path, number: int) -> NodeConfig:
    given = {
        "name": f"node{number}",
        "memory": config.memory,
        "host": config.host,
        "port": 0,
        "dir": str(directory),
        "persist": config.persist,
        "token": config.token,
    }
    return SCHEMA.load(NodeConfig, cli=given, env=os.environ, file=file).value


@contextlib.contextmanager
def _admin(config: UpConfig, master: str, file: str | None) -> Iterator[Child | None]:
    """The admin process beside the pool, when it is asked for."""
    if config.admin_port < 0:
        yield None
        return
    from moonpool.dashboard.process import admin_child

    given = {
        "master": master,
        "host": config.host,
        "port": config.admin_port,
        "token": config.token,
    }
    with admin_child(SCHEMA.load(AdminConfig, cli=given, env=os.environ, file=file).value) as child:
        yield child


def _announce(config: UpConfig, cluster: Cluster, admin: Child | None, output: Output) -> None:
    address = cluster.address
    url = admin.ready["url"] if admin else None
    page = f"  page     {url}\n" if url else ""
    processes = [
        {"role": child.role, "name": child.name, "pid": child.pid}
        for child in (*cluster.children, *([admin] if admin else []))
    ]
    record = {
        "ready": "up",
        "address": address,
        "admin": url,
        "memory": config.memory,
        "processes": processes,
    }
    output.result(
        record,
        f"The pool is up: {counted(config.nodes, 'node')} of {format_bytes(config.memory)},"
        f" master {address}\n"
        f"\n"
        f"  Python   import moonpool; pool = moonpool.connect({address!r})\n"
        f"  shell    moonpool put greeting hello.txt --master {address}\n"
        f"  both     export MOONPOOL_MASTER={address}\n"
        f"{page}"
        f"\n"
        f"Ctrl-C takes it down.",
    )
