"""The command group, and how every command ends: in one of the statuses of `stdio`, never in a traceback.

An error is `{"error": {"code", "message", "detail"}}` on stderr, or in place of the answer with --jsonl;
a stream of ours that fails, a plain line.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

import click

from slm2_web import __version__
from slm2_web.cli.bench import bench
from slm2_web.cli.engines import interrupted
from slm2_web.cli.parity import parity
from slm2_web.cli.replies import generate, replay
from slm2_web.cli.sampling import sample
from slm2_web.cli.stdio import (
    EXIT_BROKEN_PIPE,
    EXIT_DONE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    NobodyReads,
    StreamFailed,
    drop_unwritten,
    report,
    say,
)
from slm2_web.cli.text import detokenize, prompt, render, tokenize
from slm2_web.cli.vectors import vectors
from slm2_web.compile.commands import demo, serve, site
from slm2_web.errors import Cancelled, Slm2Error

COMMANDS: Final = (
    tokenize,
    detokenize,
    render,
    prompt,
    sample,
    generate,
    replay,
    bench,
    parity,
    vectors,
    site,
    serve,
    demo,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slm2-web")
def cli() -> None:
    """Small language models: the same tokens, bit for bit, everywhere.

    Each command reads one JSON object on stdin and writes one on stdout; site, serve and demo are for people.
    Errors are JSON on stderr.

    \b
    Exit status: 0 done; 1 the answer is no; 2 bad input or another error; 130 interrupted.
    Models are folders of build/models, or of the folder that SLM2_MODELS names.

    \b
    Example:
      echo '{"messages": [{"role": "user", "content": "What is 2+2?"}]}' |
        slm2-web generate --model smollm2-135m
    """


for _command in COMMANDS:
    cli.add_command(_command)


def main() -> NoReturn:
    """Entry point. SIGTERM is Ctrl-C: browsers and displays that were started end with the command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = run(sys.argv[1:])
    except Exception:
        # A bug. Python's own status would be 1, which says that the answer is no.
        with suppress(OSError):
            traceback.print_exc()
        status = EXIT_ERROR
    drop_unwritten()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """The exit status of `slm2-web arguments`."""
    try:
        status = cli.main(args=list(arguments), prog_name="slm2-web", standalone_mode=False)
        return int(status or EXIT_DONE)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return EXIT_ERROR
    except Slm2Error as error:
        report(error)
        return EXIT_INTERRUPTED if isinstance(error, Cancelled) else EXIT_ERROR
    except (KeyboardInterrupt, click.Abort):
        report(interrupted())
        return EXIT_INTERRUPTED
    except (NobodyReads, SystemExit):  # click's way to tell that nobody reads the help
        return EXIT_BROKEN_PIPE
    except (StreamFailed, OSError) as error:
        with suppress(OSError):
            say(f"slm2-web: {error}")
        return EXIT_ERROR
