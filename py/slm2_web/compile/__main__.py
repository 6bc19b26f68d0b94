"""`python -m slm2_web.compile`: fetch, compile, build, serve. What build.py does, step by step."""

from __future__ import annotations

import datetime
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from slm2_web.compile.assets import Fetcher
from slm2_web.compile.commands import demo, quant_option, say, serve, site, source_option
from slm2_web.compile.install import install_model, install_own
from slm2_web.compile.models import MODELS
from slm2_web.compile.place import find_place
from slm2_web.compile.site import SITE_FILE
from slm2_web.compile.visit import table
from slm2_web.errors import InputError, Slm2Error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Fetch assets, compile models, build the static site, serve it."""


@main.command()
@click.argument("names", nargs=-1)
def fetch(names: Sequence[str]) -> None:
    """Fetch the assets NAMES of assets.toml (all of them by default) into the cache."""
    place = find_place()
    fetcher = Fetcher.from_environment(place.sources, place.work)
    for name in names or fetcher.assets:
        click.echo(f"{name} {fetcher.fetch(name)}")


@main.command()
@click.argument("name", type=click.Choice(list(MODELS)))
@source_option
@quant_option
def model(name: str, source: Path | None, quant: str) -> None:
    """Fetch and compile the model NAME into build/models/NAME."""
    place = find_place()
    fetcher = Fetcher.from_environment(place.sources, place.work)
    click.echo(install_model(name, place.work, fetcher, say, source=source, quantization=quant))


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
    click.echo(install_own(source, find_place().work, name, license, quant, say, raw=no_template, date=day))


@main.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder of the wheel.")
def wheel(out: Path) -> None:
    """Write the whole package as a wheel that needs no checkout: it builds sites by itself."""
    from slm2_web.compile.packages import make_wheel

    click.echo(make_wheel(find_place(), out, say))


@main.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The package's folder.")
def npm(out: Path) -> None:
    """Write the page's modules as a folder that npm can pack, with types made by TypeScript."""
    from slm2_web.compile.packages import make_npm

    click.echo(make_npm(find_place(), out))


for _command in (site, serve, demo):
    main.add_command(_command)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def visit(folder: Path) -> None:
    """Print how many bytes a first visit of the site in FOLDER fetches beside the model."""
    if not (folder / SITE_FILE).is_file():
        raise click.BadParameter(f"{folder} has no {SITE_FILE}; allowed: a folder that `site` has built")
    click.echo(table(folder))


@main.command()
def clean() -> None:
    """Remove build/, and dist/ of a checkout; fetched files stay in the cache."""
    place = find_place()
    # Only of a checkout: where an installed wheel keeps things, dist/ is somebody else's.
    for folder in (*((place.default_out,) if place.is_checkout else ()), place.work / "build"):
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
    except OSError as error:
        click.echo(f"error: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    # As Ctrl-C: nothing is left half made.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run())
