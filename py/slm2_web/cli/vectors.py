"""vectors: the parity suite's vectors for implementations in other languages, and their results marked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from slm2_web.cli.models import Model
from slm2_web.cli.stdio import EXIT_DONE, EXIT_NO, say, write
from slm2_web.parity import suite
from slm2_web.parity.baseline import EXECUTORS, open_subject
from slm2_web.parity.subject import Size

DEFAULT_MODEL = "smollm2-135m"


def _stages(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in suite.STAGES:
            raise click.BadParameter(f"found {name!r}; allowed: {', '.join(suite.STAGES)}")
    return names


@click.command()
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write the vectors into DIR.")
@click.option(
    "--verify",
    "verified",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Compare DIR/results/STAGE.jsonl with the vectors of DIR.",
)
@click.option("--model", "name", default=DEFAULT_MODEL, show_default=True, metavar="NAME", help="Of --out.")
@click.option("--size", type=click.Choice(suite.SIZES), default="full", show_default=True, help="Of --out.")
@click.option(
    "--stages",
    metavar="NAME,...",
    default=",".join(suite.STAGES),
    show_default=True,
    callback=_stages,
    help="Of --out.",
)
@click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default="reference",
    show_default=True,
    help="Of --out: what computes; the vectors are the same.",
)
def vectors(
    out: Path | None, verified: Path | None, name: str, size: Size, stages: tuple[str, ...], executor: str
) -> int:
    """The parity suite's vectors, for an implementation that wants to check itself (docs/parity.md).

    \b
    in   nothing
    out  with --out the kit's index: {"suite", "size", "artifacts", "stages": {NAME: {"file", "vectors",
         "digest"}}, ...}
         with --verify {"equal", "stages": {NAME: {"vectors", "checked", "missing", "different", "equal",
         "first_difference": {"id", "input", "expected", "found"}}}}; exit status 1 when not equal
    """
    from slm2_web.compile.conformance import verify, write_kit

    if (out is None) == (verified is None):
        raise click.UsageError("one of --out and --verify is needed")
    if verified is not None:
        marked = verify(verified)
        write(marked)
        return EXIT_DONE if marked["equal"] else EXIT_NO
    assert out is not None
    model = Model(name)
    model.check_weights()

    async def work() -> dict[str, Any]:
        subject = await open_subject(model.directory, executor)
        return await write_kit(out, subject, model.directory, size, stages, say)

    write(asyncio.run(work()))
    return EXIT_DONE
