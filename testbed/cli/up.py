"""``testbed up``: an interactive fabric."""

from typing import Annotated, Any

import typer

from testbed.cli import flags, options
from testbed.plan import FabricOptions


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "sudo testbed up --hosts 4",
            "sudo testbed up --hosts 8 --topology leaf-spine --k 2 --switch bridge --run-id lab",
            "sudo testbed up --topology mininet.topolib:TreeTopo,depth=2,fanout=3 --cli",
            "sudo testbed exec h1 -- ping -c 3 h2",
            "sudo testbed down",
        )
    )(flags.expand(up))


def up(
    fabric: Annotated[FabricOptions, flags.Of()] = FabricOptions(),
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run; default: a random one.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and take the fabric down on Ctrl-C.")
    ] = False,
    cli: Annotated[
        bool, typer.Option("--cli", help="Stay, with Mininet's prompt, until exit or Ctrl-D.")
    ] = False,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
    out: options.Out = None,
) -> None:
    """Build hosts, links and switches and leave them up, held by a controller in the background.

    Hosts are h1, h2, ..., and resolve each other by these names. Then use exec, status, down.
    """
    from testbed.run.background import hold, start

    plan = fabric.plan()

    def announce(message: dict[str, Any]) -> None:
        addresses = {host.name: host.ip for host in plan.hosts}
        options.Results(json, out).write({**message, "hosts": addresses})
        if json:
            return
        count = len(plan.switches)
        switches = f"{count} switch{'es' if count > 1 else ''} ({plan.switch_kind})"
        made = f"{plan.topology}, {switches}, mtu {plan.mtu}"
        typer.echo(f"run {message['run_id']} is up: {made}")
        width = max(len(host.name) for host in plan.hosts)
        for host in plan.hosts:
            typer.echo(
                f"  {host.name:{width}} {host.ip:12} {host.mac}  on {host.switch} port {host.port}"
            )

    if foreground or cli:
        hold(plan, run_id, announce, prompt=cli)
    else:
        announce(start(plan, run_id))
