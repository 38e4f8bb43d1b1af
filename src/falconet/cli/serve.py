"""`falconet serve BUNDLE`: the HTTP API and the page, in one process or several, until Ctrl-C."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from falconet.errors import ConfigError

if TYPE_CHECKING:
    from falconet.serve.http.workers import Server


def serve(
    bundle: Annotated[
        Path,
        typer.Argument(help="A bundle, or a working folder, of which what is current is served.", metavar="BUNDLE"),
    ],
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.", min=0, max=65535)] = 8000,
    db: Annotated[
        str | None,
        typer.Option(
            help="Where events are kept: a file (SQLite), postgresql://... or redis://... "
            "Default: events.db beside the bundle, in the working folder."
        ),
    ] = None,
    scenarios: Annotated[
        Path | None, typer.Option(help="A TOML file of A/B tests: scenarios, and the variants of each.")
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(help="Another bundle, whose lists the page shows beside those of the first.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="What calls that change items or forget people must bring; without it there are none.",
            envvar="FALCONET_TOKEN",
            show_envvar=True,
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="How many processes answer, each with the bundle in memory.", min=1, max=256)
    ] = 1,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a new bundle as soon as it is in the folder, after checking it.")
    ] = False,
    timeout_ms: Annotated[
        float, typer.Option(help="What an answer may take before it goes without a stage; 0: any time.", min=0)
    ] = 2000,
    retrieve_timeout_ms: Annotated[
        float, typer.Option(help="The same of retrieval, without which the popular items are the answer.", min=0)
    ] = 1000,
    rank_timeout_ms: Annotated[
        float, typer.Option(help="The same of ranking, without which the retrievers' order is the answer.", min=0)
    ] = 500,
    store_timeout_ms: Annotated[
        float, typer.Option(help="How long a call of the store may wait for a lock or a server.", min=1)
    ] = 10_000,
    log: Annotated[bool, typer.Option("--log", help="Write a line of JSON for every request.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
) -> None:
    """Serve recommendations: an HTTP API, and a page to try them on."""
    from falconet.progress import note, set_quiet

    set_quiet(quiet)
    with _listen(host, port) as listening:  # before the models are loaded: a port in use is known at once
        from falconet.serve.current import working_folder
        from falconet.serve.http.workers import Served, Workers, answer
        from falconet.serve.scenarios import Scenarios
        from falconet.serve.stages import Budgets

        where = str(db or working_folder(bundle) / "events.db")
        tests = Scenarios() if scenarios is None else Scenarios.read(scenarios)
        served = Served(
            bundle=bundle,
            db=where,
            scenarios=tests,
            beside=beside,
            token=token,
            watch=watch,
            log=log,
            quiet=quiet,
            budgets=Budgets(
                total=timeout_ms or None, retrieve=retrieve_timeout_ms or None, rank=rank_timeout_ms or None
            ),
            store_seconds=store_timeout_ms / 1000,
        )
        address = _address(host, listening)

        def ready(server: Server | None, what: str) -> None:
            typer.echo(address)
            note(f"serving {what}; Ctrl-C stops")
            if open_page:
                threading.Thread(target=_open, args=(server, address), daemon=True).start()

        try:
            if workers > 1:
                what = f"`{bundle}` with {workers} workers"
                sys.exit(Workers(served, listening, workers).run(lambda: ready(None, what)))
            answer(
                served,
                listening,
                ready=lambda server, it: ready(server, f"bundle {it.bundle.name}, events in {it.store}"),
            )
        except KeyboardInterrupt:
            note("stopped")


def rollback(
    work: Annotated[Path, typer.Argument(help="A working folder, or the folder of its bundles.", metavar="WORK")],
) -> None:
    """Make the bundle before current again; servers that watch follow. Prints its folder."""
    from falconet.serve.current import bundle_folder
    from falconet.serve.current import rollback as go_back

    go_back(work)
    typer.echo(bundle_folder(work))


def _listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address. Raises ConfigError where that cannot be had."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"`--host {host}` is no address", hint="127.0.0.1 is this machine") from error
    # asyncio switches Nagle's algorithm off only where the socket says it is TCP; with it an answer takes 40 ms more.
    listening = socket.socket(family, kind, protocol)
    if sys.platform != "win32":  # there it would let two servers share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(where)
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is in use by another program", hint=f"--port {_free_port(host)} is free"
            ) from error
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error.strerror}", hint="choose another --host or --port"
        ) from error
    return listening


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _address(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host  # noqa: S104
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _open(server: Server | None, address: str) -> None:
    """Open the browser once the server answers; several workers do already."""
    import time
    import webbrowser

    while server is not None and not server.started and not server.should_exit:
        time.sleep(0.05)
    if server is None or server.started:
        webbrowser.open(address)
