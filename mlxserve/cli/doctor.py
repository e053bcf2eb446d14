"""``mlxserve doctor``: whether serving can work here, and what to do where it cannot."""

from __future__ import annotations

import argparse
import textwrap

from mlxserve.config import ServerConfig
from mlxserve.doctor.facts import collect
from mlxserve.doctor.findings import Finding, can_serve, examine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = ServerConfig()
    parser.add_argument("--host", default=defaults.host, help=f"default: {defaults.host}")
    parser.add_argument("--port", type=int, default=defaults.port, help=f"default: {defaults.port}")


def run(args: argparse.Namespace) -> int:
    config = ServerConfig(host=args.host, port=args.port)
    findings = list(examine(collect(config.host, config.port)))
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(line(finding, width))
    if can_serve(findings):
        print("\nServing can work here.")
        return 0
    print("\nServing cannot work here until what failed has been mended.")
    return 1


def line(finding: Finding, width: int) -> str:
    """The remedy on a line of its own; long lines wrapped."""
    status = "FAIL" if finding.status == "fail" else finding.status
    indent = " " * (width + 8)
    text = textwrap.fill(f"{status:4}  {finding.subject:{width}}  {finding.detail}", 110, subsequent_indent=indent)
    return f"{text}\n{indent}-> {finding.remedy}" if finding.remedy else text
