"""Packing Hugging Face directories: values, quantisation, what is refused, memory, the same bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slm2_web.compile.assets import Fetcher, parse_assets
from slm2_web.compile.install import QUANTIZATION_NAMES, install_model, install_own
from slm2_web.compile.pack_hf import DEFAULT_QUANTIZATION, QUANTIZATIONS, pack_hf
from slm2_web.compile.quantize import dequantize_planes
from slm2_web.compile.weights import SAFETENSORS, Loss
from slm2_web.errors import AssetError, FormatError, InputError
from slm2_web.packed import PackedModel
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_safetensors import TinyHf, make_tiny_hf, tiny_tokenizer

ROOT = Path(__file__).parents[3]
Floats = NDArray[np.float32]


def pack(made: TinyHf, out: Path, quantization: str = "q4_1", **more: Any) -> PackedModel:
    pack_hf(
        made.files,
        out,
        made.spec,
        quantization=QUANTIZATIONS[quantization],
        compile_tokenizer=made.compile_tokenizer,
        **more,
    )
    return PackedModel.open(out)


def by_file_names(model: PackedModel) -> dict[str, Floats]:
    """The packed values under the file's names, joined tensors cut into their parts."""
    c = model.manifest.config
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    joined = {
        "attn_qkv": (("attn_q", q), ("attn_k", kv), ("attn_v", kv)),
        "ffn_gate_up": (("ffn_gate", c.hidden_dim), ("ffn_up", c.hidden_dim)),
        "qkv_bias": (("q_bias", q), ("k_bias", kv), ("v_bias", kv)),
        "qk_norm": (("q_norm", c.head_dim), ("k_norm", c.head_dim)),
    }
    result: dict[str, Floats] = {}
    for name, entry in model.manifest.tensors.items():
        planes = {plane: model.plane(name, plane).reshape(-1).view(np.uint8) for plane in entry.planes}
        found = dequantize_planes(entry.type, planes, *entry.shape)
        found = found.reshape(-1) if entry.shape[0] == 1 else found
        layer, _, key = name.removeprefix("layers.").rpartition(".")
        start = 0
        if name == "rope.inv_freq":
            continue
        for part, length in joined.get(key, ((key, len(found)),)):
            result[SAFETENSORS.theirs(part, int(layer or 0))] = found[start : start + length]
            start += length
    return result


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_values_are_kept(tmp_path: Path, architecture: str, dtype: str) -> None:
    """Vectors exactly; matrices within their blocks' error, which is what the report says."""
    made = make_tiny_hf(tmp_path / "hf", architecture, seed=2, dtype=dtype)
    losses: list[Loss] = []
    model = pack(made, tmp_path / "out", report=losses.append)
    found = by_file_names(model)
    assert found.keys() == made.weights.keys()
    reported = {loss.name: loss for loss in losses}
    for name, want in made.weights.items():
        if want.ndim == 1:
            assert np.array_equal(found[name], want), name
            continue
        wrong = found[name].astype(np.float64) - want
        error = np.sqrt(np.square(wrong).sum() / np.square(want, dtype=np.float64).sum())
        assert reported[name].relative_error == pytest.approx(error, rel=1e-6)
        assert reported[name].type == ("q8_0" if "embed" in name else "q4_1")
        assert error < (0.008 if "embed" in name else 0.08)
    assert reported.keys() == {name for name, want in made.weights.items() if want.ndim == 2}
    assert model.manifest.eos_ids == (2, 0)
    assert dict(model.manifest.defaults) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 16,
    }
    assert model.manifest.template.family == "chatml"
    assert Tokenizer.from_bytes(model.tokenizer_bytes).control_id(b"<|im_end|>") == 2


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_quantizations(tmp_path: Path, quantization: str) -> None:
    made = make_tiny_hf(tmp_path / "hf", "qwen3", config={"tie_word_embeddings": False})
    tensors = pack(made, tmp_path / "out", quantization).manifest.tensors
    large = {"embed", "output"}
    assert {tensors[name].type for name in large} == {"q8_0"}
    assert {t.type for n, t in tensors.items() if t.shape[0] > 1 and n not in large} == {quantization}


def test_names_of_quantizations() -> None:
    assert tuple(QUANTIZATIONS) == QUANTIZATION_NAMES
    assert QUANTIZATION_NAMES[0] == DEFAULT_QUANTIZATION


def test_a_tied_copy_is_the_embedding(tmp_path: Path) -> None:
    """With the copy that publishers keep or without it: the same model. With another matrix: no model."""
    made = make_tiny_hf(tmp_path / "hf", "qwen3", keep_copy=True)
    assert "lm_head.weight" in made.weights
    assert np.array_equal(made.weights["lm_head.weight"], made.weights["model.embed_tokens.weight"])
    with_copy = pack(made, tmp_path / "with")
    assert "output" not in with_copy.manifest.tensors
    other = made.weights["lm_head.weight"].copy()
    other[319, 63] += 1
    changed = make_tiny_hf(tmp_path / "changed", "qwen3", tensors={"lm_head.weight": other})
    with pytest.raises(FormatError, match=r"^format\.unsupported: tensor 'lm_head\.weight'"):
        pack(changed, tmp_path / "out")
    untied = make_tiny_hf(
        tmp_path / "untied", "qwen3", tensors={"lm_head.weight": other}, config={"tie_word_embeddings": False}
    )
    assert "output" in pack(untied, tmp_path / "untied-out").manifest.tensors


def test_same_bytes_each_time(tmp_path: Path) -> None:
    made = make_tiny_hf(tmp_path / "hf", "qwen2", seed=9)
    for name in ("a", "b"):
        pack(made, tmp_path / name / "model")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "model").iterdir()}
        for name in ("a", "b")
    )
    assert first == second
    source = json.loads(first["manifest.json"])["source"]
    data = made.files["model.safetensors"].read_bytes()
    assert source == {
        "file": "model.safetensors",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


ONE = np.float32(1)
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: (arguments of make_tiny_hf, code, what the message names)
    "a bias of llama": (
        {"tensors": {"model.layers.0.self_attn.q_proj.bias": np.zeros(128, np.float32)}},
        "format.unsupported",
        "q_proj.bias",
    ),
    "an inv_freq": (
        {"tensors": {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(16, np.float32)}},
        "format.unsupported",
        "inv_freq",
    ),
    "a tensor missing": (
        {"tensors": {"model.layers.1.mlp.up_proj.weight": None}},
        "format.safetensors",
        "layers.1.mlp.up_proj",
    ),
    "an output matrix missing": (
        {"config": {"tie_word_embeddings": False}, "tensors": {"lm_head.weight": None}},
        "format.safetensors",
        "lm_head.weight",
    ),
    "a shape": (
        {"tensors": {"model.norm.weight": np.ones(32, np.float32)}},
        "format.safetensors",
        "model.norm.weight",
    ),
    "three dimensions": (
        {"tensors": {"model.layers.1.mlp.up_proj.weight": np.ones((1, 128, 64), np.float32)}},
        "format.unsupported",
        "up_proj",
    ),
    "a layer too many": ({"config": {"num_hidden_layers": 3}, "drop": 2}, "format.safetensors", "layers.2."),
    "a norm with NaN": (
        {"tensors": {"model.norm.weight": np.full(64, np.nan, np.float32)}},
        "format.unsupported",
        "model.norm.weight",
    ),
    "a matrix with infinity": (
        {"tensors": {"model.layers.0.self_attn.v_proj.weight": np.full((64, 64), np.inf, np.float32)}},
        "format.unsupported",
        "v_proj",
    ),
    "a matrix beyond f16 scales": (
        {"tensors": {"model.layers.0.self_attn.v_proj.weight": np.diag(np.full(64, 1e9, np.float32))}},
        "format.unsupported",
        "v_proj",
    ),
    "no eos": ({"generation": {"do_sample": True}}, "format.safetensors", "eos_token_id"),
    "a sliding window": ({"config": {"sliding_window": 64}}, "format.unsupported", "sliding_window"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_by_name(tmp_path: Path, name: str) -> None:
    arguments, code, names = REFUSED[name]
    layer = arguments.get("drop")
    arguments = {key: value for key, value in arguments.items() if key != "drop"}
    if layer is not None:  # as many layers in the config, one fewer in the file
        full = make_tiny_hf(tmp_path / "full", "llama", **arguments)
        gone = {key: None for key in full.weights if f"layers.{layer}." in key}
        arguments["tensors"] = gone
    made = make_tiny_hf(tmp_path / "hf", "llama", **arguments)
    out = tmp_path / "models" / "out"
    with pytest.raises(FormatError) as caught:
        pack(made, out)
    assert caught.value.code == code, caught.value
    assert names in caught.value.message
    assert not out.exists()
    assert not out.parent.exists() or not list(out.parent.iterdir())


@pytest.mark.parametrize("dtype", [b"U16", b"I16"])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_refuses_other_types_by_name(tmp_path: Path, name: str, dtype: bytes) -> None:
    """A valid safetensors file, whose values are no weights of ours."""
    made = make_tiny_hf(tmp_path / "hf", "llama")
    path = made.files["model.safetensors"]
    before, found, after = path.read_bytes().partition(f'"{name}": {{"dtype": "BF16"'.encode())
    assert found
    path.write_bytes(before + found.replace(b'"BF16"', b'"%s" ' % dtype) + after)
    with pytest.raises(FormatError, match=r"^format\.unsupported") as caught:
        pack(made, tmp_path / "out")
    assert name in caught.value.message
    assert dtype.decode().lower() in caught.value.message


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_a_file_that_is_missing(tmp_path: Path, file: str) -> None:
    made = make_tiny_hf(tmp_path / "hf", "llama")
    (made.directory / file).unlink()
    with pytest.raises(FormatError, match=r"^format\.safetensors") as caught:
        pack(made, tmp_path / "out")
    assert file in caught.value.message


@pytest.mark.parametrize("template", [None, "{{ messages | from_json }}", [{"name": "default"}], "\ud800"])
def test_a_template_that_is_none_or_cannot_be_compiled(tmp_path: Path, template: Any) -> None:
    made = make_tiny_hf(tmp_path / "hf", "llama")
    (made.directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(FormatError, match=r"^format\.unsupported: tokenizer_config\.json, chat_template"):
        pack(made, tmp_path / "out")


@pytest.mark.parametrize(("rows", "eos"), [(300, 2), (320, 312)])
def test_tokens_have_rows_and_eos_ids_have_tokens(tmp_path: Path, rows: int, eos: int) -> None:
    made = make_tiny_hf(
        tmp_path / "hf", "llama", config={"vocab_size": rows}, generation={"eos_token_id": eos}
    )
    with pytest.raises(FormatError, match=r"^format\.unsupported: tokenizer\.json: found 312 tokens"):
        pack_hf(
            made.files,
            tmp_path / "out",
            made.spec,
            compile_tokenizer=lambda data: tiny_tokenizer(made.directory, 312),
        )


def test_other_weights_than_the_named_ones(tmp_path: Path) -> None:
    made = make_tiny_hf(tmp_path / "hf", "llama")
    spec = type(made.spec)("x", "X", "CC0-1.0", "model.safetensors", "0" * 64, {})
    with pytest.raises(FormatError, match=r"^format\.model_file: model\.safetensors"):
        pack_hf(made.files, tmp_path / "out", spec, compile_tokenizer=made.compile_tokenizer)


def test_files_of_ones_own_folder_are_checked(tmp_path: Path) -> None:
    """`--from` takes the publisher's bytes and no others."""
    made = make_tiny_hf(tmp_path / "hf", "qwen3")
    fetcher = Fetcher(parse_assets((ROOT / "assets.toml").read_text("utf-8")), tmp_path / "cache")
    with pytest.raises(AssetError, match=r"^asset\.hash: qwen3-0\.6b/config\.json"):
        install_model("qwen3-0.6b", tmp_path, fetcher, print, source=made.directory)
    with pytest.raises(AssetError, match=r"^asset\.unreachable: qwen3-0\.6b/config\.json"):
        install_model("qwen3-0.6b", tmp_path, fetcher, print, source=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["qwen3-0.6b", "", "../x", "A", "a/b"])
def test_a_models_name_is_plain_and_its_own(tmp_path: Path, name: str) -> None:
    made = make_tiny_hf(tmp_path / "hf", "qwen3")
    with pytest.raises(InputError, match=r"^input\.model"):
        install_own(made.directory, tmp_path, name, "CC0-1.0", "q8_0", print)


MEMORY = """
import resource, sys
from pathlib import Path
from tiny_safetensors import make_tiny_hf
from slm2_web.compile.pack_hf import pack_hf
folder = Path(sys.argv[1])
config = {"hidden_size": 1024, "intermediate_size": 1024, "vocab_size": 40000, "num_hidden_layers": 1}
made = make_tiny_hf(folder / "hf", "qwen3", config=config, keep_weights=False, keep_copy=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pack_hf(made.files, folder / "out", made.spec, compile_tokenizer=made.compile_tokenizer)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(made.files["model.safetensors"].stat().st_size, (after - before) * 1024)
"""


def test_memory_is_that_of_a_tensor_not_of_the_file(tmp_path: Path) -> None:
    """A file of 170 MB, in a process of its own, whose peak grows by less than half of that."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{ROOT / 'py'}:{ROOT / 'tests'}", "PATH": ""},
    )
    file_bytes, grown_bytes = map(int, done.stdout.split())
    assert file_bytes > 170e6
    assert grown_bytes < 85e6
