"""The manifest: read back what was written; refuse every field that is not what it should be, by place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.errors import FormatError
from slm2_web.manifest import MAX_MANIFEST_BYTES, Manifest, manifest_bytes, parse_manifest
from slm2_web.packed import check_tensors

Raw = dict[str, Any]
QUANTS = ("tensors", "layers.0.attn_qkv", "planes", "quants")


@pytest.fixture(scope="module")
def raw(packed_tiny: Path) -> Raw:
    """A valid manifest, as JSON."""
    data: Raw = json.loads((packed_tiny / "manifest.json").read_text("utf-8"))
    return data


def parse(raw: Raw) -> Manifest:
    return parse_manifest(json.dumps(raw).encode())


def changed(raw: Raw, path: tuple[Any, ...], value: Any) -> Raw:
    """A copy with one field set, or left out when `value` is `...`."""
    result = copy.deepcopy(raw)
    at: Any = result
    for step in path[:-1]:
        at = at[step]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return result


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field below."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from fields(inner, (*path, key))


def test_written_manifest_reads_back(packed_tiny: Path) -> None:
    data = (packed_tiny / "manifest.json").read_bytes()
    manifest = parse_manifest(data)
    assert manifest_bytes(manifest) == data
    check_tensors(manifest)


BAD: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    # name: (field, value, place in the message)
    "format": (("format",), "gguf", "manifest.format"),
    "version": (("version",), 2, "manifest.format"),
    "version true": (("version",), True, "manifest.format"),
    "tensors without weights": (("weights",), None, "tensors['rope.inv_freq'].planes"),
    "name empty": (("name",), "", "name"),
    "name surrogate": (("name",), "\ud800", "name"),
    "source path": (("source", "file"), "../x", "source.file"),
    "tokenizer hidden file": (("tokenizer", "file"), ".x", "tokenizer.file"),
    "tokenizer newline": (("tokenizer", "file"), "x\n", "tokenizer.file"),
    "sha256 upper case": (("tokenizer", "sha256"), "A" * 64, "tokenizer.sha256"),
    "size a string": (("tokenizer", "bytes"), "1", "tokenizer.bytes"),
    "size true": (("tokenizer", "bytes"), True, "tokenizer.bytes"),
    "size 0": (("tokenizer", "bytes"), 0, "tokenizer.bytes"),
    "shard too big": (("weights", "shards", 0, "bytes"), (32 << 20) + 1, "weights.shards[0].bytes"),
    "shards do not add up": (("weights", "bytes"), 999, "weights.shards"),
    "no shards": (("weights", "shards"), [], "weights.shards"),
    "dim 0": (("config", "dim"), 0, "config.dim"),
    "dim a float": (("config", "dim"), 64.0, "config.dim"),
    "dim not of blocks": (("config", "dim"), 65, "config.dim"),
    "heads": (("config", "n_kv_heads"), 3, "config.n_heads"),
    "eps an integer": (("config", "norm_eps"), 0, "config.norm_eps"),
    "eps 1": (("config", "norm_eps"), 1.0, "config.norm_eps"),
    "layers 10^9": (("config", "n_layers"), 10**9, "config.n_layers"),
    "no eos": (("generation", "eos_ids"), [], "generation.eos_ids"),
    "eos beyond the vocabulary": (("generation", "eos_ids"), [300], "generation.eos_ids"),
    "eos negative": (("generation", "eos_ids"), [-1], "generation.eos_ids"),
    "defaults a list": (("generation", "defaults"), [], "generation.defaults"),
    "default system empty": (("template", "default_system"), "", "template.default_system"),
    "type": (("tensors", "embed", "type"), "q5_0", "tensors['embed'].type"),
    "type a list": (("tensors", "embed", "type"), ["f32"], "tensors['embed'].type"),
    "shape": (("tensors", "embed", "shape"), [300], "tensors['embed'].shape"),
    "rows 0": (("tensors", "embed", "shape"), [0, 64], "tensors['embed'].shape[0]"),
    "cols not of blocks": (("tensors", "embed", "shape"), [300, 48], "tensors['embed'].shape[1]"),
    "planes of another type": (("tensors", "embed", "type"), "f32", "tensors['embed'].planes"),
    "plane unaligned": (QUANTS, 128, "planes.quants"),
    "plane negative": (QUANTS, -256, "planes.quants"),
    "plane past the end": (QUANTS, 1 << 30, "planes.quants"),
    "planes overlap": (QUANTS, 0, "planes"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses_by_place(raw: Raw, name: str) -> None:
    path, value, place = BAD[name]
    with pytest.raises(FormatError) as caught:
        parse(changed(raw, path, value))
    assert caught.value.code == "format.manifest"
    assert caught.value.detail["place"].startswith(place) or place in caught.value.detail["place"]
    assert caught.value.detail["found"] in caught.value.message


def test_weights_may_be_said_to_be_missing(raw: Raw) -> None:
    """Text and ids need none. The network does: `check_tensors` is what its executors ask."""
    without = changed(changed(raw, ("weights",), None), ("tensors",), {})
    manifest = parse(without)
    assert (manifest.weights_bytes, manifest.shards, manifest.tensors) == (0, (), {})
    assert json.loads(manifest_bytes(manifest)) == without
    with pytest.raises(FormatError, match=r"^format\.manifest.*rope\.inv_freq.*found nothing"):
        check_tensors(manifest)


def accepted(data: bytes) -> bool:
    """True for a manifest of a whole network, False for a FormatError; anything else fails."""
    try:
        check_tensors(parse_manifest(data))
    except FormatError as error:
        if error.code != "format.manifest":
            raise
        return False
    return True


def test_every_field_is_needed_and_typed(raw: Raw) -> None:
    """Each field left out, and each replaced by a value of every kind."""
    values: list[Any] = [None, True, -1, 10**30, 0.5, "", [], [None], {}, {"x": {}}]
    optional, free = set(), set()
    for path in fields(raw):
        if accepted(json.dumps(changed(raw, path, ...)).encode()):
            optional.add(path)
        if sum(accepted(json.dumps(changed(raw, path, value)).encode()) for value in values) > 1:
            free.add(path)
    # Without a default system prompt a template has none; sampling defaults are checked where they are used.
    defaults = {("generation", "defaults", name) for name in raw["generation"]["defaults"]}
    assert optional == {("template", "default_system")} | defaults
    assert free == {("generation", "defaults")} | defaults


TENSORS: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "missing": (("tensors", "layers.1.ffn_down"), ..., "layers.1.ffn_down"),
    "norm missing": (("tensors", "final_norm"), ..., "final_norm"),
    "frequencies missing": (("tensors", "rope.inv_freq"), ..., "rope.inv_freq"),
    "fused missing": (("tensors", "layers.0.attn_qkv"), ..., "layers.0.attn_qkv"),
    "a layer more": (("config", "n_layers"), 3, "layers.2.attn_norm"),
    "a layer fewer": (("config", "n_layers"), 1, "layers.1."),
    "shape": (("config", "hidden_dim"), 96, "layers.0.ffn_gate_up"),
    "vocabulary": (("config", "vocab_size"), 299, "embed"),
    "heads": (("config", "n_heads"), 1, "layers.0.attn_qkv"),
    "transposed": (("tensors", "layers.0.ffn_down", "shape"), [128, 64], "layers.0.ffn_down"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_check_tensors(raw: Raw, name: str) -> None:
    path, value, place = TENSORS[name]
    manifest = parse(changed(raw, path, value))
    with pytest.raises(FormatError, match=r"^format\.manifest") as caught:
        check_tensors(manifest)
    assert caught.value.detail["place"].startswith(f"tensors['{place}")


def small_tensor(offset: int) -> Raw:
    return {"type": "f32", "shape": [1, 32], "planes": {"values": offset}}


def test_check_tensors_refuses_others(raw: Raw) -> None:
    raw = copy.deepcopy(raw)
    end = -(-raw["weights"]["bytes"] // 256) * 256
    raw["weights"]["bytes"] = raw["weights"]["shards"][0]["bytes"] = end + 128
    for name in ("layers.0.attn_bias", "layers.2.attn_norm", "layers.00.attn_norm", "__proto__", ""):
        manifest = parse(changed(raw, ("tensors", name), small_tensor(end)))
        with pytest.raises(FormatError, match=r"^format\.manifest.*does not use"):
            check_tensors(manifest)


def test_fused_beside_its_parts_is_refused(raw: Raw) -> None:
    raw = copy.deepcopy(raw)
    raw["tensors"]["layers.0.attn_q"] = raw["tensors"].pop("layers.0.attn_out")  # 64 x 64, as q is
    with pytest.raises(FormatError, match=r"layers\.0\.attn_k"):
        check_tensors(parse(raw))


def test_f32_matrices_and_quantised_norms_are_refused(raw: Raw) -> None:
    raw = copy.deepcopy(raw)
    norm = raw["tensors"]["final_norm"]
    values = norm["planes"].pop("values")
    norm |= {"type": "q8_0", "planes": {"quants": values, "scales": 1 << 20}}
    raw["weights"]["bytes"] = raw["weights"]["shards"][0]["bytes"] = (1 << 20) + 256
    with pytest.raises(FormatError, match=r"final_norm.*allowed: f32"):
        check_tensors(parse(raw))


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "not UTF-8": lambda data: data.replace(b"tiny", b"t\xffny"),
    "not JSON": lambda data: data[:-3],
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "a list": lambda data: b"[" + data + b"]",
    "a key twice": lambda data: data.replace(b'"version": 1,', b'"version": 1, "version": 1,', 1),
    "NaN": lambda data: data.replace(b'"temperature": 0.0', b'"temperature": NaN'),
    "a float beyond all": lambda data: data.replace(b'"temperature": 0.0', b'"temperature": 1e999'),
    "an integer of 5000 digits": lambda data: data.replace(b'"top_k": 0', b'"top_k": ' + b"9" * 5000),
    "nested too deep": lambda data: data.replace(b'"top_k": 0', b'"top_k": ' + b"[" * 100_000),
    "too long": lambda data: data + b" " * MAX_MANIFEST_BYTES,
}


@pytest.mark.parametrize("name", BROKEN)
def test_refuses_what_is_no_json(packed_tiny: Path, name: str) -> None:
    data = (packed_tiny / "manifest.json").read_bytes()
    broken = BROKEN[name](data)
    assert broken != data
    with pytest.raises(FormatError, match=r"^format\.manifest"):
        parse_manifest(broken)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_parse_or_fail(raw: Raw, data: st.DataObject) -> None:
    text = bytearray(json.dumps(raw).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    accepted(bytes(text))
