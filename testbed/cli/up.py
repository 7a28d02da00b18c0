"""``testbed up``: a fabric to try things on."""

from typing import Annotated, Any

import typer

from testbed.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        epilog=options.examples(
            "sudo testbed up --hosts 4",
            "sudo testbed up --hosts 8 --topology leaf-spine --k 2 --switch bridge --run-id lab",
            "sudo testbed exec h1 -- ping -c 3 h2",
            "sudo testbed down",
        )
    )(up)


def up(
    hosts: Annotated[int, typer.Option(parser=options.WHOLE, help="Number of hosts, 1 to 32.")] = 4,
    topology: Annotated[str, typer.Option(help="star, ring or leaf-spine.")] = "star",
    switch: Annotated[
        str, typer.Option(help="bridge (Linux bridge) or xdp (L2 switch program, the bridge behind it).")
    ] = "xdp",
    mtu: Annotated[int, typer.Option(parser=options.WHOLE, help="576 to 3506; up to 9000 with --switch bridge.")] = 1500,
    offload: Annotated[str, typer.Option(help="on or off: TSO, GSO, GRO and TX checksums of every link.")] = "on",
    queues: Annotated[
        int | None, typer.Option(parser=options.WHOLE, help="Queues of an interface, 1 to 64; one a CPU if not given.")
    ] = None,
    k: Annotated[int | None, typer.Option(parser=options.WHOLE, help="Leaves and spines of leaf-spine.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run; a random one if not given.")] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and take it down on Ctrl-C.")] = False,
    verbose: options.Verbose = 0,
    json: options.JsonFlag = False,
) -> None:
    """Build hosts, links and switches and leave them up, held by a controller in the background.

    Hosts are h1, h2, ...; they know each other by these names. Then: exec, status, down.
    """
    from testbed.errors import SpecError
    from testbed.fabric.background import hold, start
    from testbed.plan import plan_fabric

    if offload not in ("on", "off"):
        raise SpecError(f"--offload: {offload!r}: allowed is on or off")
    plan = plan_fabric(topology, hosts, switch, mtu, offload == "on", queues, k)

    def announce(message: dict[str, Any]) -> None:
        if json:
            options.print_json({**message, "hosts": {host.name: host.ip for host in plan.hosts}})
            return
        typer.echo(f"run {message['run_id']} is up: {topology}, {len(plan.switches)} switches ({switch}), mtu {mtu}")
        for host in plan.hosts:
            typer.echo(f"  {host.name:4} {host.ip:12} {host.mac}  on {host.switch} port {host.port}")

    if foreground:
        hold(plan, run_id, announce)
    else:
        announce(start(plan, run_id))
