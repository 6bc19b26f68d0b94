"""slm2-web: the stages on the command line, JSON in and JSON out. docs/cli.md describes every command.

Each command reads one JSON object on stdin and writes one on stdout; with --jsonl, one a line. Nothing
else goes to stdout. An error is `{"error": {"code", "message", "detail"}}` on stderr, or in place of the
answer with --jsonl. Exit status: EXIT_* below.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

import click
import numpy as np

from slm2_web import __version__, strictjson, transcript
from slm2_web.errors import Cancelled, FormatError, InputError, Slm2Error
from slm2_web.forward2.executor import Executor
from slm2_web.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from slm2_web.packed import MANIFEST_FILE, PackedModel, check_file
from slm2_web.prompt2.assemble import assemble
from slm2_web.sampling2.params import MAX_SEED, parse_params
from slm2_web.sampling2.sampler import sample
from slm2_web.session import Done, Event, Prefill, Session, Token
from slm2_web.strictjson import show
from slm2_web.template2.machine import Template, template_for
from slm2_web.template2.spec import Message
from slm2_web.tokenizer2.runs import Run, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts, Request, Transcript

EXIT_DONE: Final = 0
EXIT_NO: Final = 1  # the answer is no: a replay that differs
EXIT_ERROR: Final = 2  # bad input, a damaged file, a device that fails
EXIT_INTERRUPTED: Final = 130  # Ctrl-C
EXIT_BROKEN_PIPE: Final = 141  # nobody reads stdout any more

MAX_INPUT_BYTES: Final = 64 << 20
MAX_LOGITS: Final = 1 << 22
EXECUTORS: Final = ("reference", "wasm", "webgpu")

_MODELS_VARIABLE: Final = "SLM2_MODELS"


@dataclass(frozen=True, slots=True)
class Answer:
    """A line for stdout, and what it means for the exit status."""

    value: Mapping[str, Any]
    status: int = EXIT_DONE


class _NobodyReads(Exception):
    """stdout was closed by its reader. Not an OSError: click has a way of its own with those."""


Answerer = Callable[[Any], Answer]
F = TypeVar("F", bound=Callable[..., Any])


def main() -> NoReturn:
    """Entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit status of `slm2-web arguments`."""
    try:
        status = cli.main(args=list(arguments), prog_name="slm2-web", standalone_mode=False)
        return int(status or 0)
    except click.ClickException as error:
        error.show()
        return EXIT_ERROR
    except Slm2Error as error:
        _report(error)
        return EXIT_INTERRUPTED if isinstance(error, Cancelled) else EXIT_ERROR
    except (KeyboardInterrupt, click.Abort):
        _report(_interrupted())
        return EXIT_INTERRUPTED
    except _NobodyReads:
        # Python flushes stdout once more when it ends; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slm2-web")
def cli() -> None:
    """Small language models: the same tokens, bit for bit, everywhere.

    Each command reads one JSON object on stdin and writes one on stdout. Errors are JSON on stderr.

    \b
    Exit status: 0 done; 1 the answer is no; 2 bad input or another error; 130 interrupted.
    Models are folders of build/models, or of the folder that SLM2_MODELS names.

    \b
    Example:
      echo '{"messages": [{"role": "user", "content": "What is 2+2?"}]}' |
        slm2-web generate --model smollm2-135m
    """


def _jsonl(command: F) -> F:
    text = "Read one JSON object a line, answer each with a line; errors come in place of answers."
    return click.option("--jsonl", is_flag=True, help=text)(command)


def _model(command: F) -> F:
    text = "A compiled model: a name in the models folder, or a path."
    return click.option("--model", "name", required=True, metavar="NAME", help=text)(command)


def _executor(command: F) -> F:
    text = "What computes. The tokens are the same."
    kind = click.Choice(EXECUTORS)
    return click.option("--executor", "kind", type=kind, default="reference", show_default=True, help=text)(
        command
    )


# --- text and ids ----------------------------------------------------------------------------------------


@cli.command()
@_model
@_jsonl
def tokenize(name: str, jsonl: bool) -> int:
    """Text to ids.

    \b
    in   {"text": "..."} or {"bytes_hex": "..."}: untrusted, never gives a control id;
         {"runs": [{"text": "...", "trusted": true}]}: text in a trusted run may name added tokens;
         anything that does not begin with { is taken as plain untrusted text, byte for byte
    out  {"ids": [...]}
    """
    tokenizer = _Model(name).tokenizer

    def answer(value: Any) -> Answer:
        request = _one_of(value, ("text", "bytes_hex", "runs"))
        runs: list[Run]
        if isinstance(request, bytes):
            runs = [Untrusted(request)]
        elif "runs" in request:
            runs = [_run_of(run, f"runs[{i}]") for i, run in enumerate(_list(request["runs"], "runs"))]
        elif "text" in request:
            runs = [Untrusted(_utf8(request["text"], "text"))]
        else:
            runs = [Untrusted(_hex(request["bytes_hex"], "bytes_hex"))]
        return Answer({"ids": tokenizer.encode(runs)})

    return _serve(answer, jsonl=jsonl, plain=True)


@cli.command()
@_model
@_jsonl
def detokenize(name: str, jsonl: bool) -> int:
    """Ids to text.

    \b
    in   {"ids": [...], "special": "show" or "hide" (of added tokens; show is the default)}
    out  {"text": "..."}, or {"bytes_hex": "..."} where the bytes are not UTF-8
    """
    tokenizer = _Model(name).tokenizer

    def answer(value: Any) -> Answer:
        request = _object(value, "request", required=("ids",), optional=("special",))
        special = request.get("special", "show")
        if special not in ("show", "hide"):
            raise _bad_json("special", show(special), '"show" | "hide"')
        data = tokenizer.decode(_ids(request["ids"], "ids"), special=special)
        try:
            return Answer({"text": data.decode("utf-8")})
        except UnicodeDecodeError:
            return Answer({"bytes_hex": data.hex()})

    return _serve(answer, jsonl=jsonl)


@cli.command()
@_model
@_jsonl
def render(name: str, jsonl: bool) -> int:
    """Messages to the prompt, as the model's template frames it.

    \b
    in   {"messages": [{"role", "content"}], "add_generation_prompt": true (the default) or false}
    out  {"ids": [...], "text": "..."}
    """
    model = _Model(name)

    def answer(value: Any) -> Answer:
        request = _object(value, "request", required=("messages",), optional=("add_generation_prompt",))
        add = request.get("add_generation_prompt", True)
        if not isinstance(add, bool):
            raise _bad_json("add_generation_prompt", show(add), "true | false")
        runs = model.template.render(_messages(request["messages"]), add_generation_prompt=add)
        ids = model.tokenizer.encode(runs)
        return Answer({"ids": ids, "text": model.tokenizer.decode(ids).decode("utf-8")})

    return _serve(answer, jsonl=jsonl)


# --- sampling --------------------------------------------------------------------------------------------


@cli.command("sample")
@_jsonl
def sample_command(jsonl: bool) -> int:
    """Logits to one id.

    \b
    in   {"logits": [...], "context_ids": [...], "params": {...}, "seed": 0, "position": 0,
          "n_tokens": ids from here on have no token (default: all have)}; all but logits may be missing
    out  {"kept_ids": [...], "probs": [...], "id": ...}
    """

    def answer(value: Any) -> Answer:
        optional = ("context_ids", "params", "seed", "position", "n_tokens")
        request = _object(value, "request", required=("logits",), optional=optional)
        logits = _logits(request["logits"])
        context_ids = _ids(request.get("context_ids", []), "context_ids")
        for index, token_id in enumerate(context_ids):
            if not 0 <= token_id < logits.size:
                place, allowed = f"context_ids[{index}]", f"0 to {logits.size - 1}"
                detail = {"place": place, "found": token_id, "allowed": allowed}
                raise InputError("input.token_id", f"{place}: found {token_id}; allowed: {allowed}", detail)
        raw = _params(request)
        if "seed" in request:
            if "seed" in raw:
                raise _bad_json("seed", "a seed both in params and beside them", "one")
            raw = {**raw, "seed": request["seed"]}
        position = _integer(request.get("position", 0), "position", 0, MAX_SEED)
        n_tokens = _integer(request.get("n_tokens", logits.size), "n_tokens", 1, logits.size)
        draw = sample(logits, context_ids, parse_params(raw, {}), position, n_tokens)
        return Answer({"kept_ids": draw.kept_ids.tolist(), "probs": draw.probs.tolist(), "id": draw.id})

    return _serve(answer, jsonl=jsonl)


# --- replies ---------------------------------------------------------------------------------------------


@cli.command()
@_model
@_executor
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Context length; default: 2048, at most the model's.",
)
@click.option("--no-template", is_flag=True, help="Take the raw prompt instead of messages.")
@click.option("--explain", is_flag=True, help="Tell on stderr what the model is given and what it says.")
@_jsonl
def generate(name: str, kind: str, context: int | None, no_template: bool, explain: bool, jsonl: bool) -> int:
    """Messages to a reply, recorded as a transcript.

    \b
    in   {"messages": [{"role", "content"}], "params": {...}} or {"prompt_ids": [...], "params": {...}};
         params: temperature, top_k, top_p, min_p, repetition_penalty, seed, max_tokens, stop;
         what is missing comes from the model
    out  a transcript: prompt_ids, generated_ids, text, reason, a digest of the logits per step, ...

    With --no-template: {"prompt": "...", "params": {...}}, or plain text (all that does not begin with {).
    The raw prompt is yours and trusted: a marker such as <|im_start|> in it becomes the control token. Do
    not put text of others into it.

    With --explain, stderr shows the size of the vocabulary, the rendered prompt with its number of tokens,
    and a line per sampled token: its id, bytes and text.
    """
    model = _Model(name)
    with asyncio.Runner() as runner:
        engine = runner.run(_Engine.create(model, kind, context))

        def answer(value: Any) -> Answer:
            request, prompt_ids = _request(value, model, engine.executor.max_seq_len, no_template)
            watch = _Explainer(model, prompt_ids) if explain else _Progress(len(prompt_ids))
            done = runner.run(engine.reply(prompt_ids, request, watch))
            record = transcript.record(model.artifacts, request, prompt_ids, done, engine.executor)
            return Answer(record.as_json())

        return _serve(answer, jsonl=jsonl, plain=no_template)


@cli.command()
@click.option("--model", "name", metavar="NAME", help="Replay on this model; default: the transcript's.")
@_executor
@_jsonl
def replay(name: str | None, kind: str, jsonl: bool) -> int:
    """Run a transcript's request again and compare.

    \b
    in   a transcript
    out  {"equal": true}, or {"equal": false, "first_difference": {"place", "expected", "found", "step"}}
         and exit status 1

    Artifacts' hashes, request, prompt ids, every step's logits and id, reason and text are compared;
    executor and times are not.
    """
    engines: dict[tuple[str, int], _Engine] = {}
    with asyncio.Runner() as runner:

        def answer(value: Any) -> Answer:
            recorded = transcript.from_json(value)
            model = _Model(name or recorded.artifacts.model)
            before = _as_of_now(recorded, model)
            difference = transcript.compare(recorded, before)
            if difference is None:
                wanted = (str(model.directory), recorded.request.max_seq_len)
                if wanted not in engines:
                    engines.clear()  # one in memory at a time
                    engines[wanted] = runner.run(_Engine.create(model, kind, wanted[1]))
                engine = engines[wanted]
                done = runner.run(engine.rerun(recorded, _Progress(len(before.prompt_ids))))
                again = transcript.record(
                    model.artifacts, before.request, before.prompt_ids, done, engine.executor
                )
                difference = transcript.compare(recorded, again) or transcript.check_unaltered(recorded)
            if difference is None:
                return Answer({"equal": True})
            return Answer({"equal": False, "first_difference": difference.as_json()}, EXIT_NO)

        return _serve(answer, jsonl=jsonl)


def _as_of_now(recorded: Transcript, model: _Model) -> Transcript:
    """`recorded` with what can be told without running: artifacts, context length, prompt ids."""
    request = recorded.request
    limit = model.manifest.config.max_seq_len
    now = replace(request, max_seq_len=min(request.max_seq_len, limit))
    prompt_ids = request.prompt_ids
    if request.messages is not None:
        prompt_ids = tuple(model.tokenizer.encode(model.template.render(request.messages)))
    assert prompt_ids is not None
    return replace(recorded, artifacts=model.artifacts, request=now, prompt_ids=prompt_ids)


def _request(value: Any, model: _Model, max_seq_len: int, no_template: bool) -> tuple[Request, list[int]]:
    """What is asked for, checked, and the prompt's ids."""
    if no_template:
        raw = {"prompt": value} if isinstance(value, bytes) else value
        request = _object(raw, "request", required=("prompt",), optional=("params",))
        prompt = request["prompt"]
        data = prompt if isinstance(prompt, bytes) else _utf8(prompt, "prompt")
        source, messages, prompt_ids = "prompt", None, model.tokenizer.encode([Trusted(data)])
    else:
        request = _one_of(value, ("messages", "prompt_ids"), optional=("params",))
        source = "messages" if "messages" in request else "prompt_ids"
        messages = tuple(_messages(request["messages"])) if source == "messages" else None
        prompt_ids = [] if source == "messages" else _ids(request["prompt_ids"], "prompt_ids")
    params = parse_params(_params(request), model.manifest.defaults)
    if messages is not None:
        # One token of room is enough to begin; a reply that fills the context says so.
        prompt_ids = assemble(
            model.template, model.tokenizer, messages, max_seq_len=max_seq_len, reserve_tokens=1
        )
    recorded_ids = None if messages is not None else tuple(prompt_ids)
    return Request(messages, recorded_ids, params, max_seq_len), prompt_ids


# --- models and engines ----------------------------------------------------------------------------------


class _Model:
    """A packed directory: what can be had without its weights."""

    def __init__(self, name: str) -> None:
        self.directory = _find_model(name)
        path = self.directory / MANIFEST_FILE
        try:
            with path.open("rb") as file:
                self._manifest_bytes = file.read(MAX_MANIFEST_BYTES + 1)
        except OSError as error:
            raise _bad_file(path, error) from None
        self.manifest: Manifest = parse_manifest(self._manifest_bytes)

    @property
    def artifacts(self) -> Artifacts:
        """The hashes of its files."""
        return Artifacts.of(self.manifest, self._manifest_bytes, __version__)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises: FormatError."""
        entry = self.manifest.tokenizer
        path = self.directory / entry.file
        try:
            with path.open("rb") as file:
                data = file.read(entry.bytes + 1)
        except OSError as error:
            raise _bad_file(path, error) from None
        check_file(entry, data)
        return Tokenizer.from_bytes(data)

    @cached_property
    def template(self) -> Template:
        """Its template. Raises: FormatError."""
        return template_for(self.manifest.template, self.tokenizer)


def _find_model(name: str) -> Path:
    """The directory of a model: a path, or a name in the models folder."""
    if os.sep in name or name in (".", ".."):
        directory = Path(name)
        if (directory / MANIFEST_FILE).is_file():
            return directory
        raise _no_model(f"{directory} holds no {MANIFEST_FILE}", name, [], directory)
    folder = _models_folder()
    try:
        installed = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_FILE}"))
    except OSError:
        installed = []
    if name in installed:
        return folder / name
    listed = ", ".join(installed) or "no model"
    raise _no_model(f"{show(name)} is not in {folder}, which holds {listed}", name, installed, folder)


def _models_folder() -> Path:
    """SLM2_MODELS, else build/models here, else build/models of the checkout that this file lies in."""
    if os.environ.get(_MODELS_VARIABLE):
        return Path(os.environ[_MODELS_VARIABLE])
    here = Path("build") / "models"
    checkout = Path(__file__).resolve().parents[2] / "build" / "models"
    return checkout if checkout.is_dir() and not here.is_dir() else here


def _no_model(message: str, name: str, installed: list[str], folder: Path) -> InputError:
    detail = {"found": name, "allowed": installed, "folder": str(folder)}
    return InputError("input.model", f"model: {message}", detail)


def _bad_file(path: Path, error: OSError) -> FormatError:
    return FormatError("format.model_file", f"{path}: {error.strerror}", {"file": path.name})


@dataclass(frozen=True, slots=True)
class _Engine:
    """A model with its weights on an executor."""

    executor: Executor
    session: Session

    @classmethod
    async def create(cls, model: _Model, kind: str, max_seq_len: int | None) -> _Engine:
        """An engine. Raises: FormatError, DeviceError."""
        packed = PackedModel.open(model.directory)
        executor: Executor
        if kind == "webgpu":
            from slm2_web.forward2.native import native_executor

            executor = await native_executor(packed, max_seq_len=max_seq_len)
        elif kind == "wasm":
            from slm2_web.forward2.native_wasm import native_wasm_executor

            executor = await native_wasm_executor(packed, max_seq_len=max_seq_len)
        else:
            from slm2_web.forward2.reference import ReferenceExecutor

            executor = ReferenceExecutor(packed, max_seq_len=max_seq_len)
        return cls(executor, Session(model.tokenizer, executor, model.manifest.eos_ids))

    async def reply(self, prompt_ids: Sequence[int], request: Request, watch: _Watcher) -> Done:
        """The reply, watched. Raises: Cancelled on Ctrl-C."""
        done = None
        with _Interrupt() as interrupt:
            async for event in self.session.generate(prompt_ids, request.params, cancelled=interrupt):
                watch(event)
                done = event
        watch.end()
        interrupt.check()
        assert isinstance(done, Done)
        return done

    async def rerun(self, recorded: Transcript, watch: _Watcher) -> Done:
        """The recorded request's reply, watched. Raises: Cancelled on Ctrl-C."""
        with _Interrupt() as interrupt:
            done = await transcript.rerun(recorded, self.session, cancelled=interrupt, watch=watch)
        watch.end()
        interrupt.check()
        return done


class _Interrupt:
    """Ctrl-C as a question: the first one ends the reply after its forward pass, a second one at once."""

    def __init__(self) -> None:
        self._hit = False

    def __enter__(self) -> _Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __call__(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._hit

    def check(self) -> None:
        """Raises: Cancelled when Ctrl-C was pressed."""
        if self._hit:
            raise _interrupted()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._hit:
            raise KeyboardInterrupt
        self._hit = True


def _interrupted() -> Cancelled:
    return Cancelled("cancelled", "interrupted")


class _Watcher:
    """Sees the events of a reply."""

    def __call__(self, event: Event) -> None:
        """Take an event."""

    def end(self) -> None:
        """The reply is over."""


class _Progress(_Watcher):
    """One line on stderr that says how far a reply is; nothing where stderr is not a terminal."""

    def __init__(self, prompt_tokens: int) -> None:
        self._visible = sys.stderr.isatty()
        self._prompt_tokens = prompt_tokens
        self._n_generated = 0

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Prefill):
            self._show(f"prompt {event.done_tokens}/{event.total_tokens} tokens")
        elif isinstance(event, Token):
            self._n_generated += 1
            self._show(f"prompt {self._prompt_tokens} tokens, reply {self._n_generated}")

    def end(self) -> None:
        """Clear the line."""
        self._show("")

    def _show(self, text: str) -> None:
        if self._visible:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


class _Explainer(_Watcher):
    """What the model is given and what it says, line by line on stderr."""

    def __init__(self, model: _Model, prompt_ids: Sequence[int]) -> None:
        config = model.manifest.config
        tokenizer = model.tokenizer
        prompt = tokenizer.decode(prompt_ids).decode("utf-8", "backslashreplace")
        _say(f"model       {model.manifest.title}")
        _say(f"vocabulary  {tokenizer.n_tokens} tokens, {config.vocab_size} logits")
        _say(f"prompt      {len(prompt_ids)} tokens")
        for line in prompt.split("\n"):
            _say("  | " + _printable(line))
        _say("sampled     id, bytes, text")

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Token):
            text = event.data.decode("utf-8", "backslashreplace")
            _say(f"  {event.id:>8}  {event.data.hex():<24}  {_printable(text)!r}")
        elif isinstance(event, Done):
            _say(f"ended       {event.reason} after {len(event.generated_ids)} tokens")


def _printable(text: str) -> str:
    """`text` without characters that move a terminal's cursor or change its state."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- reading and writing ---------------------------------------------------------------------------------


def _serve(answer: Answerer, *, jsonl: bool, plain: bool = False) -> int:
    """Read, answer, write; the exit status. With --jsonl it is the worst of the lines'.

    `plain`: input that does not begin with `{` goes to `answer` as bytes.
    """
    if sys.stdin.isatty():
        _say("reading from the terminal; Ctrl-D ends the input")
    if not jsonl:
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        if plain and not data.lstrip().startswith(b"{"):
            if len(data) > MAX_INPUT_BYTES:
                raise _bad_json("input", f"more than {MAX_INPUT_BYTES} bytes", "less")
            result = answer(data)
        else:
            result = answer(_loads(data))
        _write(result.value)
        return result.status
    worst = EXIT_DONE
    for line in _lines():
        try:
            result = answer(_loads(line))
        except Cancelled:
            raise
        except Slm2Error as error:
            result = Answer({"error": error.as_json()}, EXIT_ERROR)
        _write(result.value)
        worst = max(worst, result.status)
    return worst


def _lines() -> Iterator[bytes]:
    """The lines of stdin; of one that is too long, just so much that it is seen to be."""
    while line := sys.stdin.buffer.readline(MAX_INPUT_BYTES + 1):
        rest = line
        while len(line) > MAX_INPUT_BYTES and rest and not rest.endswith(b"\n"):
            rest = sys.stdin.buffer.readline(MAX_INPUT_BYTES)
        yield line


def _loads(data: bytes) -> Any:
    try:
        return strictjson.loads(data, max_bytes=MAX_INPUT_BYTES)
    except strictjson.NotJson as error:
        raise _bad_json("input", str(error), "one JSON object") from None


def _write(value: Mapping[str, Any]) -> None:
    # An error may quote what no UTF-8 can hold; everything else is well-formed.
    text = json.dumps(value, ensure_ascii="error" in value, allow_nan=False, separators=(",", ":"))
    try:
        sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise _NobodyReads from None


def _report(error: Slm2Error) -> None:
    _say(json.dumps({"error": error.as_json()}))


# --- checking what was read ------------------------------------------------------------------------------


def _object(
    value: object, place: str, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """An object with all required keys and no unknown ones."""
    allowed = ", ".join((*required, *(f"{key} (optional)" for key in optional)))
    if not isinstance(value, dict):
        raise _bad_json(place, _kind(value), f"an object with {allowed}")
    for key in value:
        if key not in required and key not in optional:
            raise _bad_json(f"{place}.{_name(key)}", "an unknown key", allowed)
    for key in required:
        if key not in value:
            raise _bad_json(f"{place}.{key}", "nothing", "a value")
    return value


def _one_of(value: Any, keys: tuple[str, ...], *, optional: tuple[str, ...] = ()) -> Any:
    """An object with exactly one of `keys`; plain text as it is."""
    if isinstance(value, bytes):
        return value
    request = _object(value, "request", optional=(*keys, *optional))
    given = [key for key in keys if key in request]
    if len(given) != 1:
        raise _bad_json("request", " and ".join(given) or f"none of {', '.join(keys)}", "exactly one of them")
    return request


def _messages(value: object) -> list[Message]:
    return [_message(message, f"messages[{i}]") for i, message in enumerate(_list(value, "messages"))]


def _message(value: object, place: str) -> Message:
    message = _object(value, place, required=("role", "content"))
    role, content = message["role"], message["content"]
    if not isinstance(role, str):
        raise _bad("template.role", f"{place}.role", _kind(role), "a string")
    if not isinstance(content, str):
        raise _bad("template.content", f"{place}.content", _kind(content), "one string")
    _utf8(role, f"{place}.role")
    return Message(role, _utf8(content, f"{place}.content"))


def _run_of(value: object, place: str) -> Run:
    run = _object(value, place, required=("text", "trusted"))
    data, trusted = _utf8(run["text"], f"{place}.text"), run["trusted"]
    if not isinstance(trusted, bool):
        raise _bad_json(f"{place}.trusted", show(trusted), "true | false")
    return Trusted(data) if trusted else Untrusted(data)


def _params(request: Mapping[str, Any]) -> dict[str, Any]:
    params = request.get("params", {})
    if not isinstance(params, dict):
        raise _bad_json("params", _kind(params), "an object")
    return params


def _logits(value: object) -> np.ndarray[Any, np.dtype[np.float32]]:
    numbers = _list(value, "logits")
    if not 1 <= len(numbers) <= MAX_LOGITS:
        raise _bad_json("logits", f"{len(numbers)} numbers", f"1 to {MAX_LOGITS}")
    for index, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int | float) or abs(number) > 1e308:
            raise _bad_json(f"logits[{index}]", show(number), "a number")
    with np.errstate(over="ignore"):  # what does not fit into float32 is refused by the sampler
        return np.array(numbers, dtype=np.float64).astype(np.float32)


def _ids(value: object, place: str) -> list[int]:
    ids = _list(value, place)
    for index, token_id in enumerate(ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise _bad_json(f"{place}[{index}]", show(token_id), "an id")
    return ids


def _integer(value: object, place: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad_json(place, show(value), f"an integer from {low} to {high}")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _bad_json(place, _kind(value), "a list")
    return value


def _utf8(value: object, place: str) -> bytes:
    if not isinstance(value, str):
        raise _bad_json(place, _kind(value), "a string")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"the lone surrogate U+{ord(value[error.start]):04X} at character {error.start}"
        raise _bad("input.text", place, found, "well-formed Unicode") from None


def _hex(value: object, place: str) -> bytes:
    if not isinstance(value, str) or not re.fullmatch("(?:[0-9A-Fa-f]{2})*", value):
        raise _bad_json(place, show(value), "pairs of hexadecimal digits")
    return bytes.fromhex(value)


def _name(key: str) -> str:
    return key if key.isidentifier() and len(key) <= 40 else show(key)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _bad_json(place: str, found: str, allowed: str) -> InputError:
    return _bad("input.json", place, found, allowed)


def _bad(code: str, place: str, found: str, allowed: str) -> InputError:
    detail = {"place": place, "found": found, "allowed": allowed}
    return InputError(code, f"{place}: found {found}; allowed: {allowed}", detail)


if __name__ == "__main__":
    main()
