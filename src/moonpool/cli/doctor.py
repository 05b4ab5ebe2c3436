"""`moonpool doctor`: what this machine can do, and what to do about what is missing."""

import argparse
from pathlib import Path

from moonpool.cli.options import load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.probes import Finding, State
from moonpool.core.sections import MasterConfig, NodeConfig

EXAMPLES = (
    "moonpool doctor              # look, change nothing",
    "moonpool doctor --json       # one object per finding: what, state, detail, advice",
    "moonpool doctor --clean      # also remove segment files and sockets of dead processes",
)

_SYSTEM_ROOT = Path("/")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove segments whose owner is dead; their objects are lost for good",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    master = load_settings(args, MasterConfig).value
    node = load_settings(args, NodeConfig).value
    findings = examine(master, node, args.clean)
    for finding in findings:
        output.result(finding._asdict(), _lines(finding))
    output.text(_summary(findings))
    failed = any(finding.state == State.FAILED for finding in findings)
    return EXIT_FAILED if failed else EXIT_OK


def examine(
    master: MasterConfig, node: NodeConfig, clean: bool, root: Path = _SYSTEM_ROOT
) -> list[Finding]:
    """All findings; `root` is where /proc, /sys and /dev are looked for."""
    from moonpool.cli.probes.devices import probe_devices
    from moonpool.cli.probes.kernel import probe_kernel
    from moonpool.cli.probes.memory import probe_memory
    from moonpool.cli.probes.network import probe_port
    from moonpool.cli.probes.topology import probe_topology

    return [
        *probe_kernel(root),
        *probe_memory(root, node.memory),
        *probe_devices(root),
        *probe_topology(root),
        probe_port(master.host, master.port),
        *_segments(node.directory, clean),
    ]


def _segments(folder: Path, clean: bool) -> list[Finding]:
    from moonpool.cli.probes.segments import native_segment_files, probe_segments

    try:
        files = native_segment_files()
    except ImportError:
        return []  # reported as the native core's finding
    return probe_segments(folder, files, clean)


def _lines(finding: Finding) -> str:
    advice = f"\n{'':<9}{'':<24}-> {finding.advice}" if finding.advice else ""
    return f"{finding.state:<9}{finding.what:<24}{finding.detail}{advice}"


def _summary(findings: list[Finding]) -> str:
    counts = {state: sum(finding.state == state for finding in findings) for state in State}
    listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    verdict = "Moonpool cannot run here yet" if counts[State.FAILED] else "Moonpool can run here"
    return f"\n{verdict} ({listed})."
