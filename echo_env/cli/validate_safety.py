"""`echo-env validate safety`: the error rates of the safety gate on its labelled set."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from echo_env.cli.options import Format, Part


def safety(
    part: Annotated[Part, typer.Option(help="working, test (read it once) or all.")] = Part.working,
    items: Annotated[bool, typer.Option("--items", help="Print the texts that were wrong.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Print false alarms and misses of the safety gate, with exact 95 % intervals. No clinical tool."""
    from echo_env.agents.validation.safety_rates import SEED, rates

    found = rates(part.value)
    if format_ is Format.json:
        typer.echo(json.dumps({"part": part, "seed": SEED, "rates": [rate.model_dump() for rate in found]}, indent=1))
        return
    typer.echo(f"labelled set, part {part.value} (split seed {SEED})")
    for rate in found:
        share = f"{rate.wrong:3} of {rate.n:3}  {100 * rate.wrong / max(1, rate.n):5.1f} %"
        typer.echo(f"{rate.of:38} {share}   95 % {100 * rate.low:.1f}..{100 * rate.high:.1f}")
        for text in rate.items if items and not rate.of.startswith("misses") else ():
            typer.echo(f"    {text}")
