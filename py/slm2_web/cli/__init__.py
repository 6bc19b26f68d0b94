"""slm2-web: the stages on the command line, JSON in and JSON out. docs/cli.md describes every command.

    app        the group, the table of its commands, exit statuses
    text       tokenize, detokenize, render, prompt
    sampling   sample
    replies    generate, replay
    bench      bench
    parity     parity
    vectors    vectors
    options    what several commands take
    requests   checks of what was read
    models     a compiled model, found by name
    engines    a model with its weights on an executor; Ctrl-C
    watch      what stderr says while a reply is made
    stdio      reads requests, writes answers

site, serve and demo are `slm2_web.compile.commands`.

A new command is a module here and a line in `app.COMMANDS`.
"""

from slm2_web.cli.app import cli, main, run

__all__ = ["cli", "main", "run"]
