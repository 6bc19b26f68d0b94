"""The commands that `slm2-web` and `python -m slm2_web.compile` share: site, serve, demo.

They work in a checkout and from an installed wheel (place.py).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from slm2_web.compile import serve as server
from slm2_web.compile.install import QUANTIZATION_NAMES
from slm2_web.compile.models import MODELS
from slm2_web.compile.place import find_place

DEFAULT_MODEL: Final = "smollm2-135m"

model_option = click.option(
    "--model",
    "models",
    multiple=True,
    default=[DEFAULT_MODEL],
    show_default=True,
    type=click.Choice(list(MODELS)),
    help="A model on the site; the first one is what the page loads. May be given more than once.",
)
source_option = click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder that holds the publisher's files; nothing is fetched for the model.",
)
quant_option = click.option(
    "--quant",
    default=QUANTIZATION_NAMES[0],
    show_default=True,
    type=click.Choice(QUANTIZATION_NAMES),
    help="What the weights of a safetensors file become; the embedding becomes q8_0 in any case.",
)


def say(text: str) -> None:
    """A line of progress, for people."""
    click.echo(text, err=True)


def _site_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help="The site's folder.  [default: dist/ of the checkout, or ./site from a wheel]",
        ),
        model_option,
        source_option,
        quant_option,
        click.option(
            "--isolate", is_flag=True, help="For hosts that send no COOP and COEP: by a service worker."
        ),
        click.option("--no-docs", is_flag=True, help="Without the documentation."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--port", type=click.IntRange(0, 65535), help="[default: 8000, or the next free one]"),
        click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on."),
        click.option("--base", default="/", show_default=True, help="The path under which the site appears."),
        click.option(
            "--isolation/--no-isolation", default=True, help="Send COOP, COEP and CORP.", show_default=True
        ),
        click.option(
            "--shared", is_flag=True, help="Let pages of other origins import, fetch and frame the site."
        ),
        click.option("--log", is_flag=True, help="Print a line per request."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_site_options
def site(**options: Any) -> None:
    """Build the static site, if it is not up to date."""
    _build(**options)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_serve_options
def serve(folder: Path, **options: Any) -> None:
    """Serve FOLDER until Ctrl-C."""
    _serve(folder, **options)


@click.command()
@_site_options
@_serve_options
def demo(
    port: int | None, host: str, base: str, isolation: bool, shared: bool, log: bool, **options: Any
) -> None:
    """Build the site and serve it until Ctrl-C."""
    out = _build(**options)
    _serve(out, port=port, host=host, base=base, isolation=isolation, shared=shared, log=log)


def _build(
    out: Path | None, models: Sequence[str], source: Path | None, quant: str, isolate: bool, no_docs: bool
) -> Path:
    """The site's folder, up to date."""
    # Not before they are needed: `slm2-web --help` is quick.
    from slm2_web.compile.assets import Fetcher
    from slm2_web.compile.docs import install_docs
    from slm2_web.compile.install import install_model, install_parity
    from slm2_web.compile.site import build_site

    place = find_place()
    target = (out or place.default_out).absolute()
    fetcher = Fetcher.from_environment(place.sources, place.work)
    packed = [
        install_model(name, place.work, fetcher, say, source=source, quantization=quant)
        for name in dict.fromkeys(models)
    ]
    built = build_site(
        place.sources,
        target,
        packed,
        fetcher,
        say,
        hidden=[install_parity(place.work, say)],
        isolate=isolate,
        docs=None if no_docs else install_docs(place, say),
        work=place.work,
    )
    say(f"{out or target}: {'built' if built else 'up to date'}")
    return target


def _serve(
    folder: Path, port: int | None, host: str, base: str, isolation: bool, shared: bool, log: bool
) -> None:
    running = server.bind(
        folder, port, host=host, base=base, isolation=isolation, shared=shared, log=say if log else None
    )

    # Also when started in the background, where SIGINT is ignored by default, and for service managers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        click.echo(f"Serving {folder} at {running.url}  (Ctrl-C ends)")
        sys.stdout.flush()
        running.serve_forever()
    except KeyboardInterrupt:
        click.echo("\nStopped.")
    finally:
        running.server_close()
