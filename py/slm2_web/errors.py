"""Every error this package raises, and every code it can carry.

    Slm2Error(code, message, detail)
      InputError      input.*, template.*   what the caller gave: text, messages, parameters, budget
      FormatError     format.*              a file that is not what it should be
      AssetError      asset.*               a file that could not be had
      DeviceError     device.*              the machine: no WebGPU, a limit, a lost device
      BrowserError    browser.*             a browser that a program of ours drives, never the visitor's
      ProtocolError   protocol.*            our two sides disagree
      Cancelled       cancelled             somebody asked to stop; not a failure

Callers switch on `code`, which is stable; never on the message. A message gives the place, what was
found and what is allowed. `CODES` is the only list of codes; the page's copy is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

CODES: Mapping[str, tuple[str, str]] = {
    # code: (what it means, what to do about it)
    "input.text": ("Text is not well-formed Unicode.", "Remove the broken character and send again."),
    "input.character": (
        "The text has a character that the model's vocabulary cannot express.",
        "Remove the character and send again.",
    ),
    "input.json": ("The request is not valid JSON of the expected shape.", "Correct the request."),
    "input.browser": (
        "No such browser is known, or its URL is not one.",
        "Use a name of the message's list, or name@URL.",
    ),
    "input.model": ("No such model is installed.", "Check the model's name, or compile it first."),
    "input.params": ("A generation parameter is out of its range.", "Correct the parameter."),
    "input.response_format": (
        "The wanted form of the reply is not one that can be enforced.",
        "Correct the schema or the pattern; the message names what is not supported.",
    ),
    "input.token_id": ("A token id does not exist in this vocabulary.", "Use ids of this model only."),
    "input.budget": ("The prompt does not fit into the context.", "Shorten the message or start a new chat."),
    "template.role": (
        "A message has a role that the model does not know.",
        "Use a role of the detail's list.",
    ),
    "template.content": ("A message's content is not text.", "Give the content as one string."),
    "template.order": ("The messages are in an order the model was not trained on.", "Reorder the messages."),
    "template.message": (
        "A message has a field that no template knows.",
        "Leave the field out; the detail names it.",
    ),
    "template.reasoning": (
        "Reasoning stands where the model's template has no place for it.",
        "Give reasoning with assistant messages only, as one string.",
    ),
    "template.tool_calls": (
        "A tool call is not well formed.",
        "Correct the call; the detail names the field.",
    ),
    "template.tools": ("The list of tools cannot be given to this model.", "Correct it, or leave it out."),
    "template.options": ("An option of the conversation is not one of this model.", "Leave the option out."),
    "template.refused": (
        "The model's own template refuses the conversation.",
        "Change the conversation; the message is the template's.",
    ),
    "template.limit": (
        "The model's template asks for more than a rendering may take.",
        "Shorten the conversation, or use another model.",
    ),
    "format.gguf": ("The GGUF file is damaged or not a GGUF file.", "Fetch the file again."),
    "format.safetensors": (
        "The safetensors file, or a file beside it, is damaged.",
        "Fetch the model's files again.",
    ),
    "format.tokenizer_file": ("The tokenizer file is damaged.", "Rebuild the model or reload the page."),
    "format.manifest": ("The model's manifest is damaged.", "Rebuild the model or reload the page."),
    "format.model_file": (
        "A model file does not have the recorded size or hash.",
        "Reload the page to fetch it again; if it persists, the server's copy is damaged.",
    ),
    "format.transcript": ("The transcript is damaged.", "Use a transcript written by this program."),
    "format.conversation": (
        "The file holds no conversations, or they are damaged.",
        "Use a file that this page has exported.",
    ),
    "format.certificate": (
        "The parity certificate is damaged, or contradicts itself.",
        "Use a certificate written by this program.",
    ),
    "format.vectors": (
        "A conformance kit, or its results, are damaged.",
        "Write the kit again; one JSON object a line is a result.",
    ),
    "format.unsupported": ("The file is valid, but uses something we do not support.", "Use another model."),
    "asset.unreachable": ("A file could not be fetched.", "Check the network and try again."),
    "asset.hash": ("A fetched file has the wrong hash.", "Try again; if it persists, the source changed."),
    "asset.not_stored": (
        "The browser could not keep a file for the next visit.",
        "Allow this site storage or free some space; until then the file is fetched on every visit.",
    ),
    "asset.not_saved": (
        "The browser could not save a conversation.",
        "Allow this site storage or free some space; until then, export what you want to keep.",
    ),
    "asset.no_room": (
        "The browser's storage for this site has no room for a file.",
        "Free some space, or remove a model on the storage page; until then every visit fetches the file.",
    ),
    "asset.no_storage": (
        "The browser gives this page no storage, as in some private windows.",
        "Use an ordinary window, or allow this site storage; until then every visit fetches the model.",
    ),
    "asset.damaged": (
        "A stored file was damaged; it is fetched again.",
        "Nothing to do; if it happens often, check the disk.",
    ),
    "asset.interrupted": (
        "A download was cut; it goes on where it stopped.",
        "Nothing to do; if it happens often, check the network.",
    ),
    "device.insecure_context": ("The page was not served over HTTPS or localhost.", "Use HTTPS."),
    "device.no_webgpu": ("This browser offers no WebGPU adapter.", "Use a browser with WebGPU enabled."),
    "device.no_wasm": (
        "WebAssembly with SIMD is not to be had.",
        "Use a current browser; on the command line install the package wasmtime.",
    ),
    "device.limit": ("The GPU's limits are too small for this model.", "Use another device."),
    "device.lost": (
        "The GPU was lost, and no other device took over.",
        "Send again; if it persists, reload the page.",
    ),
    "device.out_of_memory": ("The browser or the GPU ran out of memory.", "Close other tabs and reload."),
    "device.self_test": ("The GPU computes wrong results.", "Update the browser or the GPU's driver."),
    "device.bad_logits": ("The model's output holds NaN or infinity.", "Reload the page; report a bug."),
    "device.worker": ("The worker died.", "Reload the page; report a bug if it happens again."),
    "browser.missing": (
        "A browser to drive, or what drives it, is not installed.",
        "Install what the detail's `install` says, or leave the browser out.",
    ),
    "browser.failed": (
        "A driven browser did not start, or ended by itself.",
        "Read the message; start it by hand to see more.",
    ),
    "browser.late": (
        "A driven browser did not do something within its limit.",
        "Try again on an idle machine, or with a longer limit.",
    ),
    "browser.script": ("A script failed in a driven page.", "Correct the script; the message is its own."),
    "protocol.message": ("A message between page and worker is malformed.", "Report a bug."),
    "protocol.version": ("Page and worker come from different versions.", "Reload the page."),
    "protocol.state": ("A call was made at the wrong time.", "Wait for the previous call to end."),
    "protocol.internal": ("The program has a bug.", "Reload the page; report a bug."),
    "cancelled": ("The operation was cancelled.", "Nothing to do."),
}


class Slm2Error(Exception):
    """Base of all errors: a stable code, a message for people, and a JSON-able detail."""

    prefixes: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, code: str, message: str, detail: Mapping[str, Any] | None = None) -> None:
        assert code in CODES, code
        assert code.startswith(self.prefixes), (code, type(self).__name__)
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail: dict[str, Any] = dict(detail or {})

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """The wire form: `{"code", "message", "detail"}`."""
        return {"code": self.code, "message": self.message, "detail": self.detail}


class InputError(Slm2Error):
    """The caller's input is wrong: text, messages, parameters, budget."""

    prefixes = ("input.", "template.")


class FormatError(Slm2Error):
    """A file is not what it should be."""

    prefixes = ("format.",)


class AssetError(Slm2Error):
    """A file could not be had."""

    prefixes = ("asset.",)


class DeviceError(Slm2Error):
    """The machine cannot do it."""

    prefixes = ("device.",)


class BrowserError(Slm2Error):
    """A browser that is driven by a program can't be had, fails or is late."""

    prefixes = ("browser.",)


class ProtocolError(Slm2Error):
    """The page's and the worker's side disagree."""

    prefixes = ("protocol.",)


class Cancelled(Slm2Error):
    """Somebody asked to stop."""

    prefixes = ("cancelled",)
