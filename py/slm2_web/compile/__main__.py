"""`python -m slm2_web.compile`: fetch, compile, build, serve. What build.py does, step by step."""

from __future__ import annotations

import datetime
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from slm2_web.compile import serve as server
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.install import QUANTIZATION_NAMES, install_model, install_own, install_parity
from slm2_web.compile.models import MODELS
from slm2_web.compile.site import SITE_FILE, SiteError, build_site
from slm2_web.compile.visit import table
from slm2_web.errors import InputError, Slm2Error

ROOT = Path(__file__).resolve().parents[3]
DEFAULT_MODEL = "smollm2-135m"

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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Fetch assets, compile models, build the static site, serve it."""


@main.command()
@click.argument("names", nargs=-1)
def fetch(names: Sequence[str]) -> None:
    """Fetch the assets NAMES of assets.toml (all of them by default) into the cache."""
    fetcher = Fetcher.from_environment(ROOT)
    for name in names or fetcher.assets:
        click.echo(f"{name} {fetcher.fetch(name)}")


@main.command()
@click.argument("name", type=click.Choice(list(MODELS)))
@source_option
@quant_option
def model(name: str, source: Path | None, quant: str) -> None:
    """Fetch and compile the model NAME into build/models/NAME."""
    fetcher = Fetcher.from_environment(ROOT)
    click.echo(install_model(name, ROOT, fetcher, say, source=source, quantization=quant))


@main.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option("--name", required=True, help="What the model is called here.")
@click.option("--license", default="NOASSERTION", show_default=True, help="Its license, by SPDX.")
@quant_option
@click.option("--no-template", is_flag=True, help="Frame nothing: contents are the prompt, as they are.")
@click.option(
    "--date",
    type=click.DateTime(["%Y-%m-%d"]),
    help="What the model's template takes for today, if it asks; recorded in the model.",
)
def pack(
    source: Path, name: str, license: str, quant: str, no_template: bool, date: datetime.datetime | None
) -> None:
    """Compile a model of your own, a GGUF file or Hugging Face directory SOURCE, into build/models/NAME."""
    day = date.date() if date else None
    click.echo(install_own(source, ROOT, name, license, quant, say, raw=no_template, date=day))


@main.command()
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "dist", help="The site's folder.")
@model_option
@source_option
@quant_option
@click.option("--isolate", is_flag=True, help="For hosts that send no COOP and COEP: by a service worker.")
def site(out: Path, models: Sequence[str], source: Path | None, quant: str, isolate: bool) -> None:
    """Build the static site, if it is not up to date."""
    fetcher = Fetcher.from_environment(ROOT)
    packed = [
        install_model(name, ROOT, fetcher, say, source=source, quantization=quant)
        for name in dict.fromkeys(models)
    ]
    hidden = [install_parity(ROOT, say)]
    built = build_site(ROOT, out.absolute(), packed, fetcher, say, hidden=hidden, isolate=isolate)
    say(f"{out}: {'built' if built else 'up to date'}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 8000, or the next free one]")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--base", default="/", show_default=True, help="The path under which the site appears.")
@click.option("--isolation/--no-isolation", default=True, help="Send COOP, COEP and CORP.", show_default=True)
@click.option("--shared", is_flag=True, help="Let pages of other origins import, fetch and frame the site.")
@click.option("--log", is_flag=True, help="Print a line per request.")
def serve(
    folder: Path, port: int | None, host: str, base: str, isolation: bool, shared: bool, log: bool
) -> None:
    """Serve FOLDER until Ctrl-C."""
    running = server.bind(
        folder, port, host=host, base=base, isolation=isolation, shared=shared, log=say if log else None
    )

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Also when started in the background, where SIGINT is ignored by default, and for service managers.
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        click.echo(f"Serving {folder} at {running.url}  (Ctrl-C ends)")
        sys.stdout.flush()
        running.serve_forever()
    except KeyboardInterrupt:
        click.echo("\nStopped.")
    finally:
        running.server_close()


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def visit(folder: Path) -> None:
    """Print how many bytes a first visit of the site in FOLDER fetches beside the model."""
    if not (folder / SITE_FILE).is_file():
        raise click.BadParameter(f"{folder} has no {SITE_FILE}; allowed: a folder that `site` has built")
    click.echo(table(folder))


@main.command()
def clean() -> None:
    """Remove dist/ and build/; fetched files stay in the cache."""
    for folder in (ROOT / "dist", ROOT / "build"):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
            say(f"removed {folder}")


def run() -> int:
    """The exit status: 0 done, 1 it could not be done, 2 bad input."""
    try:
        main(prog_name="python -m slm2_web.compile", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except Slm2Error as error:
        click.echo(f"error {error.code}: {error.message}", err=True)
        return 2 if isinstance(error, InputError) else 1
    except (SiteError, server.PortTaken, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
